"""A vendor's own library: its package, and its ops, of which a version may lack some. Each op is looked up by the
arguments that it takes; where it is not there, core's reference runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar

from tessera.errors import PlatformError
from tessera.platform.device import Reason, Tensor
from tessera.platform.ops import Kernel

S = TypeVar("S")


def import_vendor(torch: Any, package: str, platform: str, install: str) -> Any:
    """The package that a platform cannot do without, imported. install: how to get it, as the end of a sentence, in
    which {torch} stands for the version of torch. Raises PlatformError if it cannot be imported, or one of its shared
    libraries cannot be loaded."""
    try:
        return import_module(package)
    except (ImportError, OSError) as error:
        reason = str(error).partition("\n")[0]
        advice = install.format(torch=torch.__version__)
        raise PlatformError(f"platform '{platform}' needs {package} ({reason}); {advice}.") from error


def vendor_op(torch: Any, name: str, *arguments: str) -> Callable[..., Any] | Reason:
    """torch.ops.LIBRARY.OP for a name "LIBRARY::OP", if one of its overloads takes all of these arguments by name and
    needs no others; otherwise the reason."""
    library, _, op = name.partition("::")
    found = getattr(getattr(torch.ops, library), op, None)
    if found is None:
        return f"torch has no op {name} here"
    overloads = [getattr(found, overload)._schema for overload in found.overloads()]  # noqa: SLF001  # torch's only way
    taken = [{argument.name for argument in schema.arguments} for schema in overloads]
    if not any(names.issuperset(arguments) for names in taken):
        missing = ", ".join(sorted(set(arguments).difference(*taken))) or "all of its arguments together"
        return f"{name} does not take {missing} here"
    needed = [
        [one.name for one in schema.arguments if one.name not in arguments and not one.has_default_value()]
        for schema, names in zip(overloads, taken, strict=True)
        if names.issuperset(arguments)
    ]
    if all(needed):
        return f"{name} needs {', '.join(needed[0])} here"
    return found  # type: ignore[no-any-return]  # torch.ops is Any


def vendor_object(path: str) -> Any:
    """What a dotted path "package.module:Name" names, imported; the reason why not, as text, if it is not there."""
    module, _, name = path.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError):
        return f"{module} has no {name} here"


def rotary_angles(cos_sin: Tensor, positions: Tensor, style: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each element of a head, for an op that does not take them once for the pair that they turn:
    cos_sin [positions, dim], positions [T], RotarySpec.style -> [T, 1, dim] and [T, 1, dim]."""
    cos, sin = (
        half.repeat(1, 1, 2) if style == "half" else half.repeat_interleave(2, dim=-1)
        for half in cos_sin[positions][:, None].chunk(2, dim=-1)
    )
    return cos, sin


class VendorKernel(Kernel[S]):
    """A kernel that calls an op of a vendor's library. op: the op, or the reason why it is not there, in which case the
    kernel supports nothing."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def supports(self, spec: S) -> Reason | None:
        return self.op if isinstance(self.op, str) else self.declines(spec)

    @abstractmethod
    def declines(self, spec: S) -> Reason | None:
        """As supports(), where the op is there."""
