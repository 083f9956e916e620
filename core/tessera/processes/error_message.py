"""An error on its way from the process that raised it to the user."""

from __future__ import annotations

import msgspec

from tessera import errors
from tessera.errors import EngineDeadError, TesseraError


class ErrorMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A TesseraError as plain data."""

    # Name of a class in tessera.errors: the error's own, or the nearest base that is there.
    kind: str
    # One line for the user.
    message: str
    # The field of the request that it is about.
    param: str | None = None
    # OpenAI's error code.
    code: str | None = None

    @classmethod
    def from_error(cls, error: TesseraError) -> ErrorMessage:
        kind = next(base for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
        return cls(kind.__name__, error.message, error.param, error.code)

    def error(self) -> TesseraError:
        """The error to raise here; EngineDeadError if this process has no such class."""
        kind = getattr(errors, self.kind, None)
        known = kind if isinstance(kind, type) and issubclass(kind, TesseraError) else EngineDeadError
        return known(self.message, param=self.param, code=self.code)
