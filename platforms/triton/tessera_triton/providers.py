"""Packages of others whose kernels a platform uses where they are installed. None is a requirement, and none is
imported before a layer asks for it."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from tessera.platform import Reason
from tessera_triton.environment import PROVIDERS

log = logging.getLogger("tessera.triton")


class Provider:
    """A module of a package that may be installed.

    name: shown to users, and the one in the environment variable. module: its dotted name. needs: by function or
    "Class.method", the arguments that calls name; a version without one of them is not used. For functions whose
    arguments Python does not know: none."""

    def __init__(self, name: str, module: str, needs: Mapping[str, Sequence[str]]) -> None:
        self.name, self.module, self.needs = name, module, needs

    @cached_property
    def absent(self) -> Reason | None:
        """Why it is not even looked at: it is not installed, or the user left it out. Imports nothing."""
        top = self.module.partition(".")[0]
        if find_spec(top) is None:
            return f"{top} is not installed"
        chosen = os.environ.get(PROVIDERS)
        if chosen is not None and self.name not in (name.strip() for name in chosen.split(",")):
            return f"{PROVIDERS} leaves it out"
        return None

    @cached_property
    def broken(self) -> Reason | None:
        """Why it is installed but cannot be used, which is also logged. Imports it."""
        reason = self._broken()
        if reason is not None:
            log.warning("%s is not used: %s", self.name, reason)
        return reason

    def _broken(self) -> Reason | None:
        try:
            self.loaded: Any = import_module(self.module)
        except Exception as error:  # noqa: BLE001  # whatever goes wrong in a package of others
            said = str(error).partition("\n")[0]
            return f"{self.module} cannot be imported ({type(error).__name__}: {said})"
        for function, arguments in self.needs.items():
            try:
                found = attrgetter(function)(self.loaded)
            except AttributeError:
                return f"{self.module} has no {function}; install another version"
            known = inspect.signature(found).parameters if arguments else ()
            for argument in arguments:
                if argument not in known:
                    return f"{function} of {self.module} has no argument {argument}; install another version"
        return None

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the module. Only where `absent` and `broken` are None."""
        assert self.absent is None, self.absent
        assert self.broken is None, self.broken
        found: Callable[..., Any] = getattr(self.loaded, name)
        return found
