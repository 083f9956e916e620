"""The error of a type of model that nothing here serves."""

from __future__ import annotations

from tessera.errors import ModelError


class RefusedTypeError(ModelError):
    """The message is the reason alone, without the architecture's name."""
