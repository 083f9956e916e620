"""What cannot be served, told by the names of a model's files alone, so that a repository is refused before it is
fetched."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import filter as matching

from tessera.errors import ModelError

_ADAPTER = "adapter_config.json"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
# Vocabularies of other libraries, from which transformers can write a tokenizer.json.
_OTHER_VOCABULARIES = ("*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt")


def refuse_model(where: str, names: Collection[str], *, weights: bool) -> None:
    """Raises ModelError for files that make no model that is served. where: folder or repository. names: at its top.
    weights: whether they must be there."""
    if _ADAPTER in names and not served_weights(names):
        raise ModelError(
            f"'{where}' is an adapter ({_ADAPTER}), not a model, and adapters are not served yet; merge it into its "
            "base model and serve the folder that you save."
        )
    if "config.json" not in names:
        if matching(names, "*.gguf"):
            raise ModelError(_gguf(where))
        raise ModelError(f"'{where}' has no config.json, so it is not a model's folder.")
    if not weights or served_weights(names):
        return
    others = sorted({f"*.{name.rpartition('.')[2]}" for pattern in _OTHER_WEIGHTS for name in matching(names, pattern)})
    if others:
        raise ModelError(
            f"'{where}' has its weights as {', '.join(others)}, which are not read because such files can run code; "
            f"convert them: transformers.AutoModelForCausalLM.from_pretrained('{where}').save_pretrained('FOLDER') "
            "writes *.safetensors."
        )
    if matching(names, "*.gguf"):
        raise ModelError(_gguf(where))
    raise ModelError(f"'{where}' has no *.safetensors; add them, or use --load-format dummy for random weights.")


def refuse_tokenizer(where: str, names: Collection[str]) -> None:
    """Raises ModelError where no tokenizer.json is among the names at the top of a folder or repository."""
    if "tokenizer.json" in names:
        return
    instead = "give --tokenizer FOLDER, or --skip-tokenizer-init for token ids only"
    others = sorted(name for pattern in _OTHER_VOCABULARIES for name in matching(names, pattern))
    if others:
        raise ModelError(
            f"'{where}' has {others[0]} but no tokenizer.json; write one: transformers.AutoTokenizer"
            f".from_pretrained('{where}').save_pretrained('FOLDER'), and {instead}."
        )
    raise ModelError(f"'{where}' has no tokenizer.json; {instead}.")


def served_weights(names: Collection[str]) -> list[str]:
    """The *.safetensors among the names that are a model's in the format of transformers."""
    found = matching(names, "*.safetensors")
    return sorted(name for name in found if not name.startswith(("adapter_", "consolidated")))


def _gguf(where: str) -> str:
    return f"'{where}' holds a GGUF file, which is not served; give a folder with config.json and *.safetensors."
