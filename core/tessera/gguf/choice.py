"""Which GGUF file of a repository or folder a user means."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tessera.errors import ModelError, printable

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})", re.IGNORECASE)
_TOWER = re.compile(r"(?:^|.*[-._])mmproj(?:[-._].*|$)", re.IGNORECASE)
"""The names of files, without ending, that have a tower, which turns images into what a model reads."""
_PRECISIONS = ("bf16", "f16", "f32")
"""Of towers' files, those that are taken first."""
_MAX_NAMES = 8  # in a message, of many
GGUF = ".gguf"
"""How the names of llama.cpp's model files end."""


def gguf_models(names: Collection[str]) -> dict[str, list[str]]:
    """The GGUF models among file names: the files of each, in order, by the name without part and ending."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(GGUF) and not _is_tower(name):
            stem = name[: -len(GGUF)]
            part = _PART.fullmatch(stem)
            models.setdefault(stem if part is None else part["stem"], []).append(name)
    return models


def _is_tower(name: str) -> bool:
    return _TOWER.fullmatch(name.rpartition("/")[2][: -len(GGUF)]) is not None


def gguf_towers(names: Collection[str], model: str) -> list[str]:
    """The files of towers among names in the folder of a model's file, those that are to be taken first ahead. model:
    the file, by its name among them."""
    folder = model.rpartition("/")[0]
    towers = [name for name in names if name.lower().endswith(GGUF) and _is_tower(name)]
    own = sorted(name for name in towers if name.rpartition("/")[0] == folder)

    def place(name: str) -> int:
        words = re.split("[-._]", name.lower())
        return next((at for at, word in enumerate(_PRECISIONS) if word in words), len(_PRECISIONS))

    return sorted(own, key=place)


def chosen_gguf(where: str, names: Collection[str], choice: str) -> Sequence[str]:
    """The files of the one model that a choice names: a file, or a word of its name such as Q4_K_M. where: folder or
    repository, for the message. Raises ModelError if there is none, or more than one."""
    models = gguf_models(names)
    word = re.compile(rf"(?<![a-z0-9]){re.escape(choice.lower().removesuffix(GGUF))}(?![a-z0-9_])")
    fitting = [stem for stem in models if stem.lower() == choice.lower().removesuffix(GGUF)]
    fitting = fitting or [stem for stem in models if word.search(stem.lower())]
    if len(fitting) == 1:
        return models[fitting[0]]
    shown = [printable(stem, 60) for stem in (fitting or models)]
    listed = ", ".join(shown[:_MAX_NAMES]) + (f" and {len(shown) - _MAX_NAMES} more" if shown[_MAX_NAMES:] else "")
    said = f"'{printable(choice, 60)}'"
    if not models:
        raise ModelError(f"'{printable(where)}' holds no GGUF files, so {said} names none.")
    fault = f"{said} is not one of its GGUF models" if not fitting else f"{said} may be several of its GGUF models"
    raise ModelError(f"'{printable(where)}': {fault}; name one of them: {listed}.")
