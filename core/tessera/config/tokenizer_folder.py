"""Where a tokenizer's files lie: in a folder, or in a repository of the hub."""

from __future__ import annotations

from pathlib import Path

from tessera.config.hub import HubAccess, fetch_tokenizer, is_on_hub
from tessera.config.model_folder import find_folder, names_in, refuse_tokenizer
from tessera.errors import ConfigError


def tokenizer_of_model(folder: Path, name: str, asked: str | None, hub: HubAccess) -> Path:
    """What the user named, a folder or a repository, else the model's folder. Raises ConfigError, ModelError."""
    if asked is None and hub.tokenizer_revision is None:
        refuse_tokenizer(str(folder), names_in(folder))
        return folder
    return find_tokenizer(name if asked is None else asked, hub)


def find_tokenizer(name: str, hub: HubAccess) -> Path:
    """The folder of that name, or the one that a repository is fetched to. Raises ConfigError, ModelError."""
    if is_on_hub(name):
        return fetch_tokenizer(name, hub.tokenizer_revision, hub)
    if hub.tokenizer_revision is not None:
        raise ConfigError(
            f"--tokenizer-revision is for tokenizers of the hub, but '{name}' is a local folder; leave it out.",
            param="tokenizer_revision",
        )
    folder = find_folder(name)
    refuse_tokenizer(str(folder), names_in(folder))
    return folder
