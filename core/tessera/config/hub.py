"""Models of the hub: a repository's name to a local folder. huggingface_hub does the work; it is imported only where a
model is named that is no local folder, and follows its own variables (HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE, HTTPS_PROXY and so on)."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera._version import __version__
from tessera.config.checkpoint import read_checkpoint
from tessera.config.model_folder import INDEX, names_in, read_index, refuse_model, refuse_tokenizer, served_weights
from tessera.errors import ConfigError, ModelError
from tessera.sizes import show_bytes

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""Within which the hub must say what a repository holds."""

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
_LONGEST_NAME = 96
_CONFIG = "config.json"
_SETTINGS = ("generation_config.json",)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_TEMPLATES = re.compile(r"additional_chat_templates/[\w.-]+\.jinja")


@dataclass(frozen=True)
class HubAccess:
    """What a user said about the hub. revision: branch, tag or commit. token: None takes HF_TOKEN, or what `hf auth
    login` stored. folder: of the cache; None takes the library's."""

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


def is_on_hub(name: str) -> bool:
    """Whether a name is a repository's; a folder of that name goes before it."""
    return is_repository(name) and not Path(name).exists()


def fetch_model(name: str, access: HubAccess, *, weights: bool, tokenizer: bool) -> Path:
    """The local folder of a repository with config.json and, where asked for, weights and tokenizer: from the cache,
    and what is not there from the hub. What cannot be served is refused before its weights are fetched. Raises
    ModelError."""
    from tessera.config.hub_errors import in_one_line

    repository = _Repository(name, access.revision, access)
    with in_one_line(name, access.revision, repository.cache):
        listing = repository.listing()
        if listing is None:
            return repository.cached(_CONFIG, weights=weights)
        top = [file for file in listing if "/" not in file]
        refuse_model(name, top, weights=weights)
        if tokenizer:
            refuse_tokenizer(name, top)
        folder = repository.enter(_CONFIG)
        read_checkpoint(folder, weights=False)
        repository.take([file for file in _SETTINGS if file in listing], listing)
        if tokenizer:
            repository.take(_tokenizer_files(listing), listing)
        if weights:
            if INDEX in listing:
                repository.take([INDEX], listing)
            repository.take(_weight_files(folder, top), listing)
        return folder


def fetch_tokenizer(name: str, revision: str | None, access: HubAccess) -> Path:
    """The local folder of a repository with its tokenizer's files alone. Raises ModelError."""
    from tessera.config.hub_errors import in_one_line

    repository = _Repository(name, revision, access)
    with in_one_line(name, revision, repository.cache):
        listing = repository.listing()
        if listing is None:
            return repository.cached(_TOKENIZER[0], weights=False)
        refuse_tokenizer(name, listing)
        folder = repository.enter(_TOKENIZER[0])
        repository.take(_tokenizer_files(listing), listing)
        return folder


class _Repository:
    """One revision of a repository. commit: known once a file of it was taken, so that all files are of the same one.
    Files are fetched one after the other on the caller's thread, where Ctrl-C ends them at once; the library fetches
    the parts of a large file side by side itself."""

    def __init__(self, name: str, revision: str | None, access: HubAccess) -> None:
        import huggingface_hub

        self._library: Any = huggingface_hub
        self.name, self.revision = name, revision
        self.commit: str | None = None
        folder = huggingface_hub.constants.HF_HUB_CACHE if access.folder is None else access.folder
        self.cache = Path(folder).expanduser()
        self._token = access.token
        self._unreachable: Exception | None = None

    def listing(self) -> Mapping[str, int] | None:
        """Its files and their bytes; None, with a line in the log, where the hub cannot be asked."""
        from tessera.config.hub_errors import transport_error, unreachable

        api = self._library.HfApi(token=self._token, library_name="tessera", library_version=__version__)
        try:
            found = api.model_info(self.name, revision=self.revision, timeout=ANSWER_SECONDS, files_metadata=True)
        except (OSError, transport_error()) as error:
            if not unreachable(error):
                raise
            self._unreachable = error
            log.info("the hub cannot be asked; %s comes from the cache or not at all", self.name)
            return None
        return {file.rfilename: file.size or 0 for file in found.siblings or ()}

    def enter(self, file: str) -> Path:
        """The folder of this revision's commit, with a first file in it."""
        folder = self._fetch(file).parent
        self.commit = folder.name
        return folder

    def take(self, files: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Brings those files that are not in the cache. Raises ModelError where the disk has no room for them."""
        missing = [file for file in files if not isinstance(self._look_up(file), str)]
        self._check_room(sum(sizes.get(file, 0) for file in missing))
        for file in missing:
            size = show_bytes(sizes.get(file, 0))
            log.info("fetching %s of %s (%s) into %s", file, self.name, size, self.cache)
            self._fetch(file)

    def cached(self, first: str, *, weights: bool) -> Path:
        """The folder as far as it is in the cache. Raises ModelError where something is missing."""
        from tessera.config.hub_errors import not_cached

        found = self._look_up(first)
        if isinstance(found, str):
            folder = Path(found).parent
            names = names_in(folder)
            wanted = _weight_files(folder, names) if weights else []
            if set(wanted) <= set(names) and (wanted or not weights):
                return folder
        raise ModelError(not_cached(self.name, self._unreachable, self.cache))

    def _look_up(self, file: str) -> Any:
        """The path of a file in the cache; another object where it is not there."""
        revision = self.commit or self.revision
        return self._library.try_to_load_from_cache(self.name, file, cache_dir=self.cache, revision=revision)

    def _fetch(self, file: str) -> Path:
        return Path(
            self._library.hf_hub_download(
                self.name,
                file,
                revision=self.commit or self.revision,
                cache_dir=self.cache,
                token=self._token,
                library_name="tessera",
                library_version=__version__,
            )
        )

    def _check_room(self, nbytes: int) -> None:
        there = next(folder for folder in (self.cache, *self.cache.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(there).free
        if nbytes > free:
            raise ModelError(
                f"'{self.name}' needs {show_bytes(nbytes)}, but the disk of {self.cache} has {show_bytes(free)} free; "
                "free some of it, or name a folder elsewhere with --download-dir."
            )


def _tokenizer_files(names: Collection[str]) -> list[str]:
    return [*(file for file in _TOKENIZER if file in names), *filter(_TEMPLATES.fullmatch, names)]


def _weight_files(folder: Path, names: Collection[str]) -> list[str]:
    """Those of the index where there is one, else the one file that transformers writes, else all. names: at the top.
    Raises ModelError for an index that names what is not there."""
    index = read_index(folder) if INDEX in names else None
    if index is not None:
        return sorted(set(index.values()))
    return ["model.safetensors"] if "model.safetensors" in names else served_weights(names)
