"""Ops of a vendor's library, which a version of it may lack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tessera.platform import BoundOps, Device, VendorKernel, vendor_object, vendor_op


class Packet:
    """An op of torch.ops. overloads: the arguments of each, those with a default followed by "="."""

    def __init__(self, **overloads: tuple[str, ...]) -> None:
        for name, arguments in overloads.items():
            setattr(self, name, SimpleNamespace(_schema=SimpleNamespace(arguments=list(map(argument, arguments)))))
        self.overloads = lambda: list(overloads)


def argument(said: str) -> Any:
    return SimpleNamespace(name=said.rstrip("="), has_default_value=lambda: said.endswith("="))


def torch_with(**ops: Any) -> Any:
    return SimpleNamespace(ops=SimpleNamespace(chip=SimpleNamespace(**ops)))


def test_an_op_is_found_by_what_one_of_its_overloads_takes() -> None:
    op = Packet(default=("x",), rotated=("x", "weight", "angle"), fused=("x", "weight", "bias="))
    assert vendor_op(torch_with(norm=op), "chip::norm", "weight", "x") is op


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("chip::rotate", (), "torch has no op chip::rotate here"),
        ("chip::norm", ("x", "scale"), "chip::norm does not take scale here"),
        ("chip::norm", ("x", "weight"), "chip::norm does not take all of its arguments together here"),
        ("chip::turn", ("x", "cos"), "chip::turn needs sin here"),
        ("chip::turn", ("x",), "chip::turn needs cos, sin here"),
    ],
)
def test_why_an_op_cannot_be_called_is_said(name: str, arguments: tuple[str, ...], reason: str) -> None:
    turn = Packet(default=("x", "cos", "sin", "mode="), whole=("x", "angle"))
    torch = torch_with(norm=Packet(default=("x",), fused=("weight",)), turn=turn)
    assert vendor_op(torch, name, *arguments) == reason


def test_an_object_is_imported_by_its_path() -> None:
    assert vendor_object("pathlib:Path.home")
    assert vendor_object("pathlib:Path.house") == "pathlib has no Path.house here"
    assert vendor_object("no.such.module:Norm") == "no.such.module has no Norm here"


class Even(VendorKernel[int]):
    def declines(self, spec: int) -> str | None:
        return "odd" if spec % 2 else None

    def bind(self, spec: int, ops: BoundOps, device: Device) -> Any:
        return self.op


def test_a_kernel_whose_op_is_missing_supports_nothing() -> None:
    assert [Even(print).supports(spec) for spec in (1, 2)] == ["odd", None]
    assert Even("torch has no op chip::norm here").supports(2) == "torch has no op chip::norm here"
