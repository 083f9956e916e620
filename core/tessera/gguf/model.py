"""A GGUF file as a model: its weights under transformers' names, and the files that a folder of transformers has beside
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tessera.gguf.architectures import architecture_of
from tessera.gguf.architectures.architecture import GgufArchitecture
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.modules import MODULES, module_file
from tessera.gguf.tensors import GgufWeight
from tessera.gguf.text_tensors import text_tensors
from tessera.gguf.tokenizer import end_token_ids, tokenizer_config, tokenizer_json

_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Of general.sampling.*, the recommended settings, to those of generation_config.json."""
FLOATS: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GgufModel:
    """Raises ModelError for a file that is broken or of a model that is not served."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.fields = GgufFields(file.metadata)

    @cached_property
    def architecture(self) -> GgufArchitecture:
        return architecture_of(self.fields, self.file.path)

    @property
    def weights(self) -> Mapping[str, GgufWeight]:
        """By transformers' name."""
        return self.text_weights

    @cached_property
    def text_weights(self) -> Mapping[str, GgufWeight]:
        """Those of the text model."""
        return text_tensors(self.file, self.fields, self.architecture)

    def release(self) -> None:
        """GgufFile.release"""
        self.file.release()

    # ---- the files of a folder

    @property
    def names(self) -> Sequence[str]:
        modules = (MODULES,) if self.architecture.embeds else ()
        return ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", *modules)

    def read(self, name: str) -> bytes | None:
        """One of these files; None for another name."""
        match name:
            case "config.json":
                return json.dumps(self.config()).encode()
            case "generation_config.json":
                return json.dumps(self.generation_config()).encode()
            case "tokenizer.json":
                return self._tokenizer
            case "tokenizer_config.json":
                return json.dumps(tokenizer_config(self.file.metadata)).encode()
        return module_file(self.fields, name) if self.architecture.embeds else None

    @cached_property
    def _tokenizer(self) -> bytes:
        return tokenizer_json(self.file.metadata)

    def config(self) -> dict[str, Any]:
        fields, architecture = self.fields, self.architecture
        hidden = fields.count("embedding_length")
        embedding = self.text_weights.get(architecture.ends["token_embd.weight"])
        return {
            "architectures": [architecture.name],
            "model_type": architecture.model_type,
            "vocab_size": None if embedding is None else embedding.shape[0],
            "hidden_size": hidden,
            "num_hidden_layers": fields.num_layers,
            "max_position_embeddings": fields.count("context_length"),
            "rms_norm_eps": fields.number(
                "attention.layer_norm_rms_epsilon", fields.get("attention.layer_norm_epsilon")
            ),
            "tie_word_embeddings": "lm_head.weight" not in self.text_weights,
            "bos_token_id": fields.token("bos"),
            "pad_token_id": fields.token("padding"),
            "eos_token_id": end_token_ids(self.file.metadata) or None,
            "dtype": self.dtype,
            **architecture.sizes(fields, self.file),
            **architecture.settings(fields, self.file),
        }

    def generation_config(self) -> dict[str, Any]:
        """The settings that the file recommends."""
        said = {name: self.file.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def dtype(self) -> str:
        """The dtype of the matrices that are not quantized, if none is; else bfloat16."""
        kinds = {tensor.type.name for tensor in self.file.tensors.values() if len(tensor.shape) > 1}
        return FLOATS.get(next(iter(kinds)), "bfloat16") if len(kinds) == 1 else "bfloat16"


def open_model(path: Path) -> GgufModel:
    """The model in a file; one that has been opened is not read again while it is unchanged. Raises ModelError."""
    status = path.stat()
    return _opened(path.absolute(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _opened(path: Path, changed: int, size: int) -> GgufModel:
    return GgufModel(GgufFile.open(path))
