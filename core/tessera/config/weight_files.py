"""Which *.safetensors files of a folder or repository hold a model's weights: those that transformers reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tessera.config.model_folder import (
    INDEX,
    MAX_SETTINGS_BYTES,
    MAX_VALUES,
    decode,
    names_in,
    read_bytes,
    regular_file,
    served_weights,
)
from tessera.errors import ModelError, printable

SINGLE = "model.safetensors"

_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<total>(?!00000)\d{5})\.safetensors")
_MAX_NAMES = 3  # names in a message, of many


@dataclass(frozen=True)
class WeightFiles:
    """files: their names, sorted. index: which of them holds each tensor; None if no index is used. unread: names of
    other weights beside them, which are not read."""

    files: Sequence[str]
    index: Mapping[str, str] | None
    unread: Sequence[str]

    @property
    def notes(self) -> Sequence[str]:
        """A line about files that are not read, if there are any."""
        if not self.unread:
            return ()
        verb = "is" if len(self.unread) == 1 else "are"
        return (f"weights are read from {_listed(self.files)} alone; {_listed(self.unread)} {verb} not read",)


def weight_files(folder: Path, names: Collection[str]) -> WeightFiles:
    """The files of a model. names: at the top of the folder, or of the repository that is downloaded into it; of its
    files, only the index is read. In this order, as transformers has it: model.safetensors, unless an index names it
    among others; the files of the index; without both, the only file or the only complete set of shards. Raises
    ModelError for an invalid index, and if the names leave open which files are the model's."""
    index = read_index(folder) if INDEX in names else None
    files: Sequence[str]
    if SINGLE in names and (index is None or SINGLE not in index.values()):
        files, index = [SINGLE], None
    elif index is not None:
        files = sorted(set(index.values()))
    else:
        files = _unindexed(folder, served_weights(names))
    return WeightFiles(files, index, sorted({*served_weights(names)} - {*files}))


def find_weights(folder: Path) -> WeightFiles:
    """The files of a model's folder. Opens none of them but the index. Raises ModelError as weight_files() does, and if
    one of them is missing or not a regular file."""
    found = weight_files(folder, names_in(folder))
    refuse_missing(folder, found, [name for name in found.files if regular_file(folder, name) is not None])
    return found


def refuse_missing(folder: Path, weights: WeightFiles, names: Collection[str]) -> None:
    """Raises ModelError for a file that is not among the names. folder: of the index, for the message."""
    for name in weights.files:
        if name not in names:
            by = INDEX if weights.index is not None else next((one for one in weights.files if one in names), name)
            raise ModelError(
                f"'{printable(folder / by)}' names {printable(name, 60)}, which is not there; download it again."
            )


def read_index(folder: Path) -> dict[str, str] | None:
    """The file that holds each tensor, by tensor name; None if there is no index. Raises ModelError."""
    content = read_bytes(folder, INDEX, MAX_SETTINGS_BYTES)
    if content is None:
        return None
    path = printable(folder / INDEX)
    if content.count(b",") > MAX_VALUES // 2:
        raise ModelError(f"'{path}' names more than {MAX_VALUES // 2:,} tensors, which no model has.")
    where = decode(content, folder / INDEX, _Index, "a safetensors index").weight_map
    names: dict[str, str] = {}
    where = {tensor: names.setdefault(file, file) for tensor, file in where.items()}
    for file in sorted(names):
        if "/" in file or not file.endswith(".safetensors"):
            raise ModelError(
                f"'{path}' names '{printable(file, 40)}', which is no *.safetensors beside it; download both."
            )
    if not names:
        raise ModelError(f"'{path}' names no tensor; download it again.")
    return where


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _unindexed(folder: Path, names: Sequence[str]) -> Sequence[str]:
    """Of files without an index: all of a set of shards, those that are missing too, or the only file."""
    sets = {(shard["stem"], shard["total"]) for name in names if (shard := _SHARD.fullmatch(name)) is not None}
    if len(sets) == 1:
        ((stem, total),) = sets
        return [f"{stem}-{number:05}-of-{total}.safetensors" for number in range(1, int(total) + 1)]
    if len(names) > 1:
        raise ModelError(
            f"'{printable(folder)}' has {_listed(names)}, and neither {SINGLE} nor {INDEX} says which of them hold the "
            "model; remove the others, or write an index."
        )
    return names


def _listed(names: Sequence[str]) -> str:
    said = [printable(name, 60) for name in names]
    more = len(said) - _MAX_NAMES
    return " and ".join(said) if more <= 0 else f"{', '.join(said[:_MAX_NAMES])} and {more} more"
