"""What went wrong, for whom, in one line: user errors with their HTTP status and exit code, in one table.

Every error a client, a file, a plugin or a user of the command line can cause is a TesseraError whose text is one clear
line that says what to do. Anything else that is raised is a bug.
"""

from __future__ import annotations

from typing import ClassVar


class TesseraError(Exception):
    """A user's error. `status` is the HTTP status, `kind` OpenAI's error type, `code` its error code, `exit_code` the
    command line's."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    code: str | None = None
    param: str | None = None
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param if param is not None else type(self).param
        self.code = code if code is not None else type(self).code


class RequestError(TesseraError, ValueError):
    """A request says something that cannot be done. `param` names the field."""

    status, kind, exit_code = 400, "invalid_request_error", 2


class TextLimitError(RequestError):
    """Rendering or tokenizing a text took more time or memory than it may, or ended the process that did it."""

    code = "text_limit_exceeded"


class AuthenticationError(TesseraError):
    status, kind, exit_code = 401, "invalid_request_error", 2
    code = "invalid_api_key"


class NotFoundError(TesseraError):
    status, kind, exit_code = 404, "invalid_request_error", 2


class TooLargeError(TesseraError):
    """A body, a prompt or a count is over its limit."""

    status, kind, exit_code = 413, "invalid_request_error", 2


class OverloadedError(TesseraError):
    """The server has more to do than it takes on; try again later."""

    status, kind, exit_code = 503, "overloaded_error", 1


class TextWorkerError(TesseraError):
    """The process that renders chat templates and tokenizes cannot be started, or is killed by something else."""

    status, kind, exit_code = 503, "internal_error", 1


class EngineDeadError(TesseraError):
    """The engine's process ended or stopped answering."""

    status, kind, exit_code = 503, "engine_error", 4


class EngineStepError(TesseraError):
    """An engine step of this request failed; the log has the error."""

    status, kind, exit_code = 500, "engine_error", 4


class ConfigError(TesseraError, ValueError):
    """A flag, a field of the configuration or an environment variable does not hold."""

    status, kind, exit_code = 500, "configuration_error", 2


class RefusedError(ConfigError):
    """A platform says that it cannot run a model, or a configuration of it. The text says why and what can run."""


class ModelError(TesseraError):
    """The model's folder is missing, broken or of a kind that is not served."""

    status, kind, exit_code = 500, "model_error", 3


class PlatformError(TesseraError):
    """No platform, several equal ones, or one that does not keep its contract."""

    status, kind, exit_code = 500, "platform_error", 5


class MemoryBudgetError(TesseraError):
    """The weights or the KV cache do not fit the budget."""

    status, kind, exit_code = 500, "memory_error", 6


class PortError(TesseraError):
    """The address is taken or cannot be bound."""

    status, kind, exit_code = 500, "address_error", 7


class ServerError(TesseraError):
    """A server that was asked cannot be reached, or failed."""

    status, kind, exit_code = 502, "server_error", 8


EXIT_CODES: dict[int, str] = {
    0: "done, or stopped by SIGTERM or Ctrl-C after draining",
    1: "any other error, or a bug (with a traceback)",
    2: "an invalid flag, argument or request",
    3: "the model is missing, broken or not supported",
    4: "the engine died",
    5: "no usable platform, or several with the same score",
    6: "not enough memory",
    7: "the port is taken or cannot be bound",
    8: "the server cannot be reached, or failed",
}
