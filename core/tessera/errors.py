"""User errors, each with its HTTP status and exit code.

Every error that a client, a file, a plugin or a command-line user can cause is a TesseraError whose message is one
clear line that says what to do. Any other exception is a bug.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal


class TesseraError(Exception):
    """A user error. `status` is the HTTP status, `kind` OpenAI's error type, `code` OpenAI's error code,
    `retry_seconds` when a client may try again, if the status says that it may, and `exit_code` the exit code of the
    command line."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    code: str | None = None
    param: str | None = None
    retry_seconds: int = 1
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param if param is not None else type(self).param
        self.code = code if code is not None else type(self).code


class RequestError(TesseraError, ValueError):
    """An invalid request. `param` names the field."""

    status, kind, exit_code = 400, "invalid_request_error", 2


class TextLimitError(RequestError):
    """Rendering or tokenizing a text exceeded the time or memory limit, or crashed the worker process."""

    code = "text_limit_exceeded"


class MediaLimitError(RequestError):
    """Processing an image or a sound exceeded the time or memory limit, or crashed the worker process."""

    code = "media_limit_exceeded"


class AuthenticationError(TesseraError):
    status, kind, exit_code = 401, "invalid_request_error", 2
    code = "invalid_api_key"


class NotFoundError(TesseraError):
    status, kind, exit_code = 404, "invalid_request_error", 2


class TooLargeError(TesseraError):
    """A body, a prompt or a count is over its limit."""

    status, kind, exit_code = 413, "invalid_request_error", 2


class AnswerTooLargeError(TooLargeError):
    """What a client has not read of an answer takes too much memory."""

    code = "answer_too_large"


class OverloadedError(TesseraError):
    """The server has too much to do to accept the request; try again later."""

    status, kind, exit_code = 503, "overloaded_error", 1


class EngineAsleepError(OverloadedError):
    """The engine sleeps until somebody wakes it up."""

    code = "engine_asleep"


class QueueFullError(OverloadedError):
    """As many requests wait as may. limit: which one is reached, by the name of vLLM's flag."""

    limit: ClassVar[Literal["max_num_queued_reqs", "max_num_queued_tokens"]] = "max_num_queued_reqs"


class QueuedTokensError(QueueFullError):
    """As many prompt tokens wait as may."""

    limit = "max_num_queued_tokens"


class TextWorkerError(TesseraError):
    """The process that renders chat templates and tokenizes could not be started, was killed from outside, or stood
    still."""

    status, kind, exit_code = 503, "internal_error", 1


class MediaWorkerError(TesseraError):
    """The process that processes images and sounds could not be started, was killed from outside, or stood still."""

    status, kind, exit_code = 503, "internal_error", 1


class EngineDeadError(TesseraError):
    """The engine process ended or stopped responding."""

    status, kind, exit_code = 503, "engine_error", 4


class EngineStepError(TesseraError):
    """An engine step that included this request failed; the error is in the log."""

    status, kind, exit_code = 500, "engine_error", 4


class FatalRequestError(TesseraError):
    """Engines died each time that they ran this request, the last time with nothing beside it."""

    status, kind, exit_code = 500, "engine_error", 4
    code = "request_kills_engine"


class ConfigError(TesseraError, ValueError):
    """A flag, a configuration field or an environment variable is invalid."""

    status, kind, exit_code = 500, "configuration_error", 2


class RefusedError(ConfigError):
    """A platform cannot run a model or configuration. The message says why, and what can run."""


class ModelError(TesseraError):
    """The model folder is missing, broken or of an unsupported kind."""

    status, kind, exit_code = 500, "model_error", 3


class PlatformError(TesseraError):
    """No platform is usable, several have the same score, or one breaks the platform contract."""

    status, kind, exit_code = 500, "platform_error", 5


class MemoryBudgetError(TesseraError):
    """The weights or the KV cache do not fit in the memory budget."""

    status, kind, exit_code = 500, "memory_error", 6


class PortError(TesseraError):
    """The address is in use or cannot be bound."""

    status, kind, exit_code = 500, "address_error", 7


class ServerError(TesseraError):
    """A server that a command called cannot be reached, or failed."""

    status, kind, exit_code = 502, "server_error", 8


EXIT_CODES: dict[int, str] = {
    0: "done, or stopped by SIGTERM, SIGHUP or Ctrl-C after draining",
    1: "any other error, or a bug (with a traceback)",
    2: "an invalid flag, argument or request",
    3: "the model is missing, broken or not supported",
    4: "the engine died",
    5: "no usable platform, or several with the same score",
    6: "not enough memory",
    7: "the port is taken or cannot be bound",
    8: "the server cannot be reached, or failed",
}


def printable(name: str | Path, longest: int = 120) -> str:
    """A name for a one-line message: shortened to its end if it is long, without unprintable characters."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(name)[-longest - 1 :])
    return text if len(text) <= longest else f"...{text[1:]}"
