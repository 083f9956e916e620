"""-v, which every command takes, before its name or after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click


@dataclass
class Verbosity:
    """What a run of the program was told; the object of click's context."""

    tracebacks: bool = False


def _set(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    verbosity = context.find_object(Verbosity)
    if wanted and verbosity is not None:
        verbosity.tracebacks = True


def verbose_option() -> click.Option:
    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _set}
    return click.Option(["-v", "--verbose"], help="Show the traceback of an error.", **settings)
