"""A model's folder: finding it, refusing unsupported ones by their file names, and the only code that reads its files.

A GGUF file stands for a folder: it has the same settings and weights in one file (tessera.gguf). The files are not
trusted. Only regular files in the folder itself are opened, up to a size limit for each kind, and
every fault in them is a one-line ModelError."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from fnmatch import filter as matching
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from tessera.config.named_models import NAMED_MODELS
from tessera.errors import ModelError, printable
from tessera.gguf.choice import GGUF, gguf_models

if TYPE_CHECKING:
    from tessera.gguf.model import GgufModel

INDEX = "model.safetensors.index.json"

MAX_SETTINGS_BYTES = 32 * 2**20
MAX_TOKENIZER_BYTES = 128 * 2**20
MAX_TEMPLATE_BYTES = 2**20
MAX_HEADER = 32 * 2**20
"""The largest header of a *.safetensors file in bytes, which lists its tensors; enough for half a million of them."""
MAX_VALUES = 2**20
"""The most values in a JSON file, and so tensors in an index; this bounds the memory of the parsed text."""
MAX_DEPTH = 64
MAX_INTEGER_BITS = 128  # model_max_length is 10**30 for tokenizers without a limit

_ADAPTER = "adapter_config.json"
_OTHER_NAMES = "consolidated*.safetensors"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
# Vocabulary files of other libraries, from which transformers can create a tokenizer.json.
_OTHER_VOCABULARIES = ("*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt")
_Decoded = TypeVar("_Decoded")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


# ---- finding the folder --------------------------------------------------------


def find_folder(model: str) -> Path:
    """The folder or GGUF file that a user named; of a folder that holds a GGUF model alone, the file. Raises ModelError
    with similar names beside it."""
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return _only_gguf(path)
        is_file = path.is_file()
    except OSError as error:
        raise ModelError(f"'{printable(model)}' cannot be read: {error.strerror}.") from error
    if is_file and is_gguf(path):
        return path
    if is_file:
        raise ModelError(
            f"'{printable(model)}' is a file; name the folder that holds config.json and *.safetensors, or a GGUF file."
        )
    if is_gguf(path):
        raise ModelError(f"There is no file '{printable(model)}'.")
    raise ModelError(
        f"There is no folder '{printable(model)}'{nearest(path)}. A model of the hub is named as ORGANIZATION/NAME; by "
        f"one word, there are {', '.join(NAMED_MODELS)}."
    )


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file, by its name; a folder of such a name is a folder."""
    return path.suffix.lower() == GGUF and not path.is_dir()


def gguf_model(path: Path, mmproj: Path | None = None) -> GgufModel:
    """The model in a GGUF file. mmproj: the file of the tower beside it. Raises ModelError."""
    if mmproj is not None:
        from tessera.gguf.vision.model import open_vision_model

        return open_vision_model(path, mmproj)
    from tessera.gguf.model import open_model  # only then, since importing it takes 20 ms

    return open_model(path)


def _only_gguf(folder: Path) -> Path:
    """The GGUF model in a folder without config.json, by its first file; else the folder. Raises ModelError if there
    are several."""
    names = names_in(folder)
    models = [] if "config.json" in names else [*gguf_models(names).values()]
    if len(models) > 1:
        raise ModelError(
            f"'{printable(folder)}' holds several GGUF models; name one file, such as "
            f"{printable(folder / models[0][0])}."
        )
    return folder / models[0][0] if models else folder


def names_in(folder: Path) -> list[str]:
    """The names in a folder, or of what a GGUF file has for one. Raises ModelError if it cannot be read."""
    if is_gguf(folder):
        return [*gguf_model(folder).names]
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise ModelError(f"'{printable(folder)}' cannot be read: {error.strerror}.") from error


def nearest(path: Path) -> str:
    """A phrase with the model folders beside a path whose names are similar; "" if there are none."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if (entry / "config.json").is_file()]
    except (OSError, ValueError):
        return ""
    near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f" (near it: {printable(', '.join(near))})" if near else ""


# ---- refusing unsupported folders by their file names -----------------------------


def refuse_model(where: str, names: Collection[str], *, weights: bool) -> None:
    """Raises ModelError for files that are not a supported model, so that a repository is refused before it is
    downloaded. where: folder or repository. names: files at its top. weights: whether they are required."""
    where = printable(where)
    if _ADAPTER in names and not served_weights(names):
        raise ModelError(
            f"'{where}' is an adapter ({_ADAPTER}), not a model; serve its base model with --enable-lora "
            "--lora-modules NAME=FOLDER, or merge it into that and serve the folder that you save."
        )
    if "config.json" not in names:
        if matching(names, "*.gguf"):
            raise ModelError(_gguf(where, names))
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
        raise ModelError(_gguf(where, names))
    if other := sorted(matching(names, _OTHER_NAMES)):
        raise ModelError(
            f"'{where}' has its weights as {printable(other[0], 60)}, whose tensors have other names than transformers "
            "gives them; use a version of the model with model.safetensors."
        )
    raise ModelError(f"'{where}' has no *.safetensors; add them, or use --load-format dummy for random weights.")


def refuse_tokenizer(where: str, names: Collection[str]) -> None:
    """Raises ModelError if there is no tokenizer.json among the names at the top of a folder or repository."""
    if "tokenizer.json" in names:
        return
    where = printable(where)
    instead = "give --tokenizer FOLDER, or --skip-tokenizer-init for token ids only"
    others = sorted(name for pattern in _OTHER_VOCABULARIES for name in matching(names, pattern))
    if others:
        raise ModelError(
            f"'{where}' has {others[0]} but no tokenizer.json; write one: transformers.AutoTokenizer"
            f".from_pretrained('{where}').save_pretrained('FOLDER'), and {instead}."
        )
    raise ModelError(f"'{where}' has no tokenizer.json; {instead}.")


def served_weights(names: Collection[str]) -> list[str]:
    """The *.safetensors files of a model in transformers' format, among names."""
    found = matching(names, "*.safetensors")
    return sorted(name for name in found if not name.startswith(("adapter_", "consolidated")))


def _gguf(where: str, names: Collection[str]) -> str:
    first = printable(next(iter(gguf_models(names)), "FILE"), 60)
    return f"'{where}' holds GGUF files: name one of them, as {where}:{first}, or the file itself."


# ---- reading a file ------------------------------------------------------------


def read_bytes(folder: Path, name: str, limit: int) -> bytes | None:
    """Reads a file of a model's folder; None if there is none of that name. limit: in bytes. Raises ModelError."""
    if is_gguf(folder):
        return gguf_model(folder).read(name)
    path = regular_file(folder, name)
    if path is None:
        return None
    try:
        # The file may have been replaced since the check, so do not wait for a pipe or follow a link.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            _refuse_kind(folder / name, found.st_mode)
            content = file.read(limit + 1) if found.st_size <= limit else None
    except OSError as error:
        raise ModelError(f"'{printable(folder / name)}' cannot be read: {error.strerror}.") from error
    if content is None or len(content) > limit:
        raise ModelError(
            f"'{printable(folder / name)}' has more than {limit // 2**20} MiB, which no such file of a model needs; "
            "download it again."
        )
    return content


def regular_file(folder: Path, name: str) -> Path | None:
    """The resolved path of a file in a model's folder, for code that opens it itself; None if there is none. Raises
    ModelError for anything but a regular file, and for a link that leaves the folder, unless it points to weights."""
    path = folder / name
    try:
        if not os.path.lexists(path):
            return None
        resolved = path.resolve(strict=True)
        home = _home(folder.resolve(strict=True))
        # Weights may be stored elsewhere: they are large, often shared, and never shown to a client.
        if not resolved.is_relative_to(home) and path.suffix != ".safetensors":
            raise ModelError(
                f"'{printable(path)}' is a link out of the model's folder, which is not followed; put the file in its "
                "place."
            )
        _refuse_kind(path, resolved.stat().st_mode)
    except RuntimeError as error:  # how Python before 3.13 reports circular links
        raise ModelError(f"'{printable(path)}' cannot be read: its links go in a circle.") from error
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ModelError(f"'{printable(path)}' is a link to what is not there; download it again.") from error
        raise ModelError(f"'{printable(path)}' cannot be read: {error.strerror}.") from error
    return resolved


def open_weights(folder: Path, name: str, framework: Literal["pt", "np"]) -> Any:
    """Maps a *.safetensors file; the library opens it by path. framework: of the tensors that it gives. Raises
    ModelError."""
    from safetensors import SafetensorError, safe_open

    path = regular_file(folder, name)
    try:
        if path is None:
            raise FileNotFoundError("it is not there")
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                raise SafetensorError(f"its header has more than {MAX_HEADER >> 20} MiB")
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"'{printable(folder / name)}' cannot be read ({first_line(error)}); download it again."
        ) from None


def read_text(folder: Path, name: str, limit: int) -> str | None:
    """Like read_bytes, decoded as UTF-8."""
    content = read_bytes(folder, name, limit)
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(f"'{printable(folder / name)}' is not UTF-8 text; download it again.") from error


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of plain settings, safe to send to another process; None if there is no such file. Raises
    ModelError."""
    text = read_text(folder, name, MAX_SETTINGS_BYTES)
    if text is None:
        return None
    path = printable(folder / name)
    if sum(map(text.count, ",[{")) > MAX_VALUES:
        raise ModelError(f"'{path}' has more than {MAX_VALUES:,} values, which no settings of a model need.")
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ModelError(f"'{path}' is not valid JSON: it nests too deeply.") from error
    except ValueError as error:
        raise ModelError(f"'{path}' is not valid JSON: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' is not a JSON object.")
    if (fault := _fault(content, MAX_DEPTH)) is not None:
        raise ModelError(f"'{path}' is not valid JSON: {fault}.")
    return content


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    """The only part of tokenizer.json that is decoded, because the file may have megabytes."""

    added_tokens: list[_AddedToken] = []


def read_added_tokens(folder: Path) -> dict[str, int]:
    """Token ids of the special and added tokens in tokenizer.json, by text. Raises ModelError."""
    content = read_bytes(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    if content is None:
        return {}
    found = decode(content, folder / "tokenizer.json", _AddedTokens, "a tokenizer's JSON")
    return {token.content: token.id for token in found.added_tokens}


class _Vocabulary(msgspec.Struct):
    """Of byte pairs and word pieces by text, of others in order."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Tokens(_AddedTokens):
    model: _Vocabulary = msgspec.field(default_factory=_Vocabulary)


def token_ids(folder: Path, texts: Sequence[str]) -> list[int | None]:
    """Of the tokens with these texts in tokenizer.json; None for one that is not there. Raises ModelError."""
    content = read_bytes(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    if content is None:
        return [None for _ in texts]
    tokens = decode(content, folder / "tokenizer.json", _Tokens, "a tokenizer's JSON")
    vocab = tokens.model.vocab
    ids = vocab if isinstance(vocab, dict) else {text: number for number, (text, _) in enumerate(vocab)}
    ids = {**ids, **{token.content: token.id for token in tokens.added_tokens}}
    return [ids.get(text) for text in texts]


def decode(content: bytes, path: Path, kind: type[_Decoded], what: str) -> _Decoded:
    """A file's JSON as a msgspec type. what: it should be, for the message. Raises ModelError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise ModelError(f"'{printable(path)}' is not {what}: {reason}.") from error


def first_line(error: BaseException) -> str:
    """A library's error message, shortened for a one-line message."""
    return printable((str(error).splitlines() or [type(error).__name__])[0][:100]).rstrip(".")


def _home(folder: Path) -> Path:
    """The folder that links may lead into: the folder itself or, for a snapshot in the Hub's cache, its repository."""
    repository = folder.parent.parent
    is_snapshot = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else folder


def _refuse_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise ModelError(
            f"'{printable(path)}' is {kind}, not a file that can be read; put the model's own in its place."
        )


def _fault(value: Any, depth: int) -> str | None:
    """Why a JSON value cannot be used as a setting; None if it can."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "it holds half of a surrogate pair, which no text can"
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_INTEGER_BITS else "it holds a number of too many digits"
    if not isinstance(value, dict | list):
        return None
    if depth == 0:
        return "it nests too deeply"
    within = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return next((fault for one in within if (fault := _fault(one, depth - 1)) is not None), None)
