"""What the hub's library raises, as one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, errors

from tessera.config.model_folder import nearest
from tessera.errors import ModelError, TesseraError

HOW_TO_LOG_IN = "set HF_TOKEN or give --hf-token"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
_LONGEST_REASON = 160


@contextmanager
def in_one_line(name: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Runs what asks the hub for a repository; what it raises becomes a ModelError."""
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
    """The base of what the library's HTTP client raises; which client it is differs from version to version."""
    return next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


def unreachable(error: BaseException) -> bool:
    """Whether the hub could not be asked at all, or is down: then what is in the cache may serve."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, (errors.OfflineModeIsEnabled, transport_error()))


def not_cached(name: str, error: BaseException | None, cache: Path) -> str:
    """The line for a repository that is not, or not wholly, in the cache, while the hub does not help. error: why."""
    missing = f"'{name}' is not wholly in the cache ({cache})"
    if error is None or isinstance(error, errors.OfflineModeIsEnabled):
        return f"{missing}, and HF_HUB_OFFLINE keeps it from being fetched; unset it once, or give a local folder."
    return (
        f"{missing}, and {constants.ENDPOINT} cannot be asked ({_reason(error)}); check the network, HTTPS_PROXY and "
        "HF_ENDPOINT, or give a local folder."
    )


def _line(error: Exception, name: str, cache: Path) -> str:
    if isinstance(error, errors.LocalEntryNotFoundError):  # what it was about is its cause
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
