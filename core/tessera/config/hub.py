"""Downloads a model or tokenizer from the Hub into a local folder. Every failure is one line that says what to do.

huggingface_hub does the work and follows its own environment variables (HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE, HTTPS_PROXY and so on)."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants, errors

from tessera._version import __version__
from tessera.config.checkpoint import QUANTIZATION_FILE, read_checkpoint
from tessera.config.model_folder import INDEX, names_in, nearest, refuse_model, refuse_tokenizer
from tessera.config.sentence_transformers import MODULE_FILES
from tessera.config.weight_files import refuse_missing, weight_files
from tessera.errors import ModelError, TesseraError
from tessera.gguf.choice import chosen_gguf, gguf_towers
from tessera.sizes import show_bytes

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""Timeout for listing a repository's files."""

HOW_TO_LOG_IN = "set HF_TOKEN or give --hf-token"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
_LONGEST_REASON = 160
_CONFIG = "config.json"
_SETTINGS = ("generation_config.json", QUANTIZATION_FILE, *MODULE_FILES)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_MODULES = re.compile(r"[1-9]\d?_\w+/(config\.json|model\.safetensors)")
"""Of sentence-transformers, but the first, which is the model itself."""
_TEMPLATES = re.compile(r"additional_chat_templates/[\w.-]+\.jinja")


def fetch_model(
    name: str, revision: str | None, token: str | None, folder: str | None, *, weights: bool, tokenizer: bool
) -> Path:
    """The local folder of a repository with config.json and, if requested, weights and tokenizer. Downloads the files
    that are not in the cache. An unsupported model is refused before its weights are downloaded.

    revision: branch, tag or commit; None for the default branch. token: None uses HF_TOKEN, or the token stored by `hf
    auth login`. folder: of the cache; None uses the library's. Raises ModelError.
    """
    repository = _Repository(name, revision, token, folder)
    with in_one_line(name, revision, repository.cache):
        listing = repository.listing()
        if listing is None:
            return repository.cached(_CONFIG, weights=weights)
        top = [file for file in listing if "/" not in file]
        refuse_model(name, top, weights=weights)
        if tokenizer:
            refuse_tokenizer(name, top)
        path = repository.enter(_CONFIG)
        read_checkpoint(path, weights=False)
        repository.take([file for file in listing if file in _SETTINGS or _MODULES.fullmatch(file)], listing)
        if tokenizer:
            repository.take(_tokenizer_files(listing), listing)
        if weights:
            if INDEX in listing:
                repository.take([INDEX], listing)
            chosen = weight_files(path, top)
            refuse_missing(path, chosen, top)
            repository.take(chosen.files, listing)
        return path


def fetch_gguf(name: str, choice: str, revision: str | None, token: str | None, folder: str | None) -> Path:
    """The local path of a repository's GGUF file, or of the first of its parts. Downloads what is not in the cache, and
    the file of a tower beside it.
    choice: the file's name, or a part of it such as Q4_K_M; the others as in fetch_model. Raises ModelError."""
    repository = _Repository(name, revision, token, folder)
    with in_one_line(name, revision, repository.cache):
        listing = repository.listing()
        if listing is None:
            cached = repository.snapshot()
            return cached / chosen_gguf(name, [*map(str, _files_in(cached))], choice)[0]
        first, *others = chosen_gguf(name, listing, choice)
        others += gguf_towers(listing, first)[:1]
        repository.check_room([first, *others], listing)
        path = repository.enter(first) / first
        repository.take(others, listing)
        return path


def fetch_tokenizer(name: str, revision: str | None, token: str | None, folder: str | None) -> Path:
    """The local folder of a repository with only its tokenizer files; token and folder as in fetch_model. Raises
    ModelError."""
    repository = _Repository(name, revision, token, folder)
    with in_one_line(name, revision, repository.cache):
        listing = repository.listing()
        if listing is None:
            return repository.cached(_TOKENIZER[0], weights=False)
        refuse_tokenizer(name, listing)
        path = repository.enter(_TOKENIZER[0])
        repository.take(_tokenizer_files(listing), listing)
        return path


class _Repository:
    """One revision of a repository. commit: set after the first file, so that all files come from the same commit.
    Files are downloaded one after the other on the caller's thread, where Ctrl-C stops them at once; the library itself
    downloads the parts of a large file in parallel."""

    def __init__(self, name: str, revision: str | None, token: str | None, folder: str | None) -> None:
        self.name, self.revision = name, revision
        self.commit: str | None = None
        self.cache = Path(constants.HF_HUB_CACHE if folder is None else folder).expanduser()
        self._token = token
        self._unreachable: Exception | None = None

    def listing(self) -> Mapping[str, int] | None:
        """File names and sizes in bytes. Returns None, and logs a line, if the Hub cannot be reached."""
        api = huggingface_hub.HfApi(token=self._token, library_name="tessera", library_version=__version__)
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
        """Downloads a first file and returns the folder of this revision's commit."""
        folder = self._fetch(file).parents[file.count("/")]
        self.commit = folder.name
        return folder

    def take(self, files: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Downloads the files that are not in the cache. Raises ModelError if the disk lacks space for them."""
        for file in self.check_room(files, sizes):
            size = show_bytes(sizes.get(file, 0))
            log.info("fetching %s of %s (%s) into %s", file, self.name, size, self.cache)
            self._fetch(file)

    def cached(self, first: str, *, weights: bool) -> Path:
        """The folder in the cache. Raises ModelError if something is missing."""
        found = self._look_up(first)
        if isinstance(found, str):
            folder = Path(found).parent
            names = names_in(folder)
            wanted = weight_files(folder, names).files if weights else []
            if set(wanted) <= set(names) and (wanted or not weights):
                return folder
        raise ModelError(not_cached(self.name, self._unreachable, self.cache))

    def snapshot(self) -> Path:
        """The folder of this revision in the cache."""
        return Path(
            huggingface_hub.snapshot_download(
                self.name, revision=self.revision, cache_dir=self.cache, local_files_only=True
            )
        )

    def _look_up(self, file: str) -> Any:
        """The path of a file in the cache; something other than a string if it is not there."""
        revision = self.commit or self.revision
        return huggingface_hub.try_to_load_from_cache(self.name, file, cache_dir=self.cache, revision=revision)

    def _fetch(self, file: str) -> Path:
        return Path(
            huggingface_hub.hf_hub_download(
                self.name,
                file,
                revision=self.commit or self.revision,
                cache_dir=self.cache,
                token=self._token,
                library_name="tessera",
                library_version=__version__,
            )
        )

    def check_room(self, files: Sequence[str], sizes: Mapping[str, int]) -> Sequence[str]:
        """The files that are not in the cache. Raises ModelError if the disk lacks space for them."""
        missing = [file for file in files if not isinstance(self._look_up(file), str)]
        nbytes = sum(sizes.get(file, 0) for file in missing)
        there = next(folder for folder in (self.cache, *self.cache.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(there).free
        if nbytes > free:
            raise ModelError(
                f"'{self.name}' needs {show_bytes(nbytes)}, but the disk of {self.cache} has {show_bytes(free)} free; "
                "free some of it, or name a folder elsewhere with --download-dir."
            )
        return missing


def _files_in(folder: Path) -> Iterator[Path]:
    """All files below a folder, as paths within it."""
    return (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _tokenizer_files(names: Collection[str]) -> list[str]:
    return [*(file for file in _TOKENIZER if file in names), *filter(_TEMPLATES.fullmatch, names)]


# ---- the library's exceptions, as one line that says what to do ------------------


@contextmanager
def in_one_line(name: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Turns exceptions of code that talks to the Hub into a ModelError."""
    try:
        yield
    except TesseraError:
        raise
    except errors.GatedRepoError as error:
        raise ModelError(
            f"'{name}' is gated: ask for access at {constants.ENDPOINT}/{name}, then {HOW_TO_LOG_IN} (a token of the "
            "account that has it)."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"There is neither a folder '{name}'{nearest(Path(name))} nor such a public repository at "
            f"{constants.ENDPOINT}; check the spelling, or {HOW_TO_LOG_IN} if it is private."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"'{name}' has no revision '{revision}'; give a branch, a tag or a commit that "
            f"{constants.ENDPOINT}/{name}/commits shows, or leave --revision out."
        ) from error
    except (OSError, RuntimeError, transport_error()) as error:
        raise ModelError(_line(error, name, cache)) from error


def transport_error() -> type[Exception]:
    """The base class of the HTTP client's exceptions; the client depends on the library's version."""
    return next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


def unreachable(error: BaseException) -> bool:
    """Whether the Hub cannot be reached or is down, so that the cached files may be used instead."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, (errors.OfflineModeIsEnabled, transport_error()))


def not_cached(name: str, error: BaseException | None, cache: Path) -> str:
    """The message for a repository that is not completely in the cache while the Hub is unavailable. error: why."""
    missing = f"'{name}' is not wholly in the cache ({cache})"
    if error is None or isinstance(error, errors.OfflineModeIsEnabled):
        return f"{missing}, and HF_HUB_OFFLINE keeps it from being fetched; unset it once, or give a local folder."
    return (
        f"{missing}, and {constants.ENDPOINT} cannot be asked ({_reason(error)}); check the network, HTTPS_PROXY and "
        "HF_ENDPOINT, or give a local folder."
    )


def _line(error: Exception, name: str, cache: Path) -> str:
    if isinstance(error, errors.LocalEntryNotFoundError):  # the real error is its cause
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError) and not unreachable(cause):
            return _line(cause, name, cache)
        return not_cached(name, cause, cache)
    if isinstance(error, errors.HfHubHTTPError):
        if error.response.status_code == 401:
            return (
                f"{constants.ENDPOINT} does not take the token; check --hf-token, HF_TOKEN or what `hf auth login` "
                "has stored."
            )
        status = error.response.status_code
        return f"{constants.ENDPOINT} answered {status} for '{name}' ({_reason(error)}); try again later."
    if unreachable(error):
        return not_cached(name, error, cache)
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL:
        return f"The disk of {cache} is full; free some of it, or name a folder elsewhere with --download-dir."
    if number in _FORBIDDEN:
        return f"{cache} cannot be written to ({_reason(error)}); name another folder with --download-dir."
    return (
        f"The download of '{name}' broke off ({_reason(error)}); start again: files that are complete are not "
        "fetched a second time."
    )


def _reason(error: BaseException | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:_LONGEST_REASON]
