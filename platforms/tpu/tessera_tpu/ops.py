"""The op table: core's definitions, which XLA compiles and fuses as part of a step."""

from __future__ import annotations

from functools import partial
from typing import Any

from tessera.platform import BoundOps, Device, Kernel, OpSet, replace


class Compiled(Kernel[Any]):
    """The definition of a plain op, as a part of a program that XLA compiles. It is the platform's implementation, and
    no stand-in for one: XLA fuses what the definition spells out."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> Any:
        return partial(self.reference, spec)


def compiled(reference: OpSet) -> OpSet:
    """core's table, with every plain op compiled."""
    plain = {name: op.reference for name in reference.names() if (op := reference[name]).reference is not None}
    return replace(reference, **{name: Compiled(call) for name, call in plain.items()})
