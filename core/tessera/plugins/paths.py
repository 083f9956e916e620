"""Dotted paths, "package.module:Name": how plugins name objects to import later, in the process that needs them."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tessera.errors import PlatformError

_NAME = r"[^\W\d]\w*"
_PATH = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*")


def path_problem(path: object) -> str | None:
    """Why something is not a dotted path, or None if it is one."""
    if isinstance(path, str) and _PATH.fullmatch(path):
        return None
    return f"{path!r:.80} is not a dotted path such as package.module:Name"


def load_path(path: str) -> Any:
    """The object at a dotted path. Raises PlatformError if the path or the name in it is wrong; errors raised by the
    module itself are passed on."""
    problem = path_problem(path)
    if problem is not None:
        raise PlatformError(f"{problem}.")
    module_name, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise PlatformError(
                f"{path}: there is no module {error.name}; correct the path, or install what has it."
            ) from error
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            raise PlatformError(f"{path}: {module_name} has no {name}; correct the path.")
        found = getattr(found, part)
    return found
