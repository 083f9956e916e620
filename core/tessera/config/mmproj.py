"""Finds the file of the tower that belongs to a GGUF model: the one that a user named, else one beside the model, by
the names that llama.cpp's converter gives them."""

from __future__ import annotations

import logging
from pathlib import Path

from tessera.config.model_folder import gguf_model, is_gguf, names_in
from tessera.errors import ConfigError, ModelError, printable
from tessera.gguf.choice import gguf_towers

NONE = "none"
"""Said instead of a file, where a model is to be served without its tower."""

log = logging.getLogger(__name__)


def find_mmproj(model: Path, named: str | None) -> Path | None:
    """model: the model's folder or GGUF file. named: by the user. None if there is no tower; one beside the model that
    does not fit it, or is not served, is left out, which the log says. Raises ConfigError, and ModelError for a named
    one that does not fit."""
    if named == NONE:
        return None
    if named is not None:
        if not is_gguf(model):
            raise ConfigError(
                f"mmproj belongs to a model in a GGUF file, and '{printable(model)}' is none; remove it.",
                param="mmproj",
            )
        path = Path(named).expanduser()
        _check(model, path)
        return path
    if not is_gguf(model):
        return None
    fault = ""
    for name in gguf_towers(names_in(model.parent), model.name):
        try:
            _check(model, model.parent / name)
        except ModelError as error:
            fault = fault or error.message
        else:
            return model.parent / name
    if fault:
        log.warning("images are refused: %s", fault)
    return None


def _check(model: Path, path: Path) -> None:
    """Raises ModelError for a tower that cannot be used with a model."""
    both = gguf_model(model, path)
    both.config()
    assert both.weights
