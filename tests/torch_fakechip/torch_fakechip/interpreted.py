"""The same device in Python alone, by torch's experimental registration of such: a tensor of the host in a wrapper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "interpreted"
PART = (
    "a part of the device, in Python: ops, refusals and counted reads; no second device, streams, events, memory "
    "figures or graphs, so no engine"
)

_reads: Counter[str] = Counter()
_ops: Counter[str] = Counter()
_rules: dict[str, Any] = {"refuse": False, "allowed": None, "copies": 0}
_READS = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "_local_scalar_dense")


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def reads() -> dict[str, int]:
    return dict(_reads)


def waits() -> dict[str, int]:
    raise NotImplementedError(PART)


def copies() -> int:
    return int(_rules["copies"])


def ops() -> dict[str, int]:
    return dict(_ops)


def allocated(index: int) -> int:
    raise NotImplementedError(PART)


def reset() -> None:
    _reads.clear()
    _ops.clear()
    _rules["copies"] = 0


@contextmanager
def refused_reads() -> Iterator[None]:
    _rules["refuse"] = True
    try:
        yield
    finally:
        _rules["refuse"] = False


@contextmanager
def only_ops(names: Sequence[str]) -> Iterator[None]:
    _rules["allowed"] = frozenset(names)
    try:
        yield
    finally:
        _rules["allowed"] = None


class Graph:
    def __enter__(self) -> Self:
        raise NotImplementedError(PART)

    def __exit__(self, *_: object) -> None:
        return None


class OnChip(Tensor):
    """host: the tensor whose memory it is."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnChip:
        made: OnChip = Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device("fakechip", 0),
        )  # fmt: skip
        made.host = host
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch's would read the device
        return f"OnChip({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = op.name().partition(".")[0]
    if name in ("aten::_to_copy", "aten::copy_", "aten::_copy_from"):
        return _copied(op, name, args, kwargs)
    if _rules["allowed"] is not None and name not in _rules["allowed"]:
        raise RuntimeError(f"fakechip: {name} is not among the allowed ops")
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and not isinstance(leaf, OnChip) and leaf.dim() > 0:
            raise RuntimeError(f"fakechip: {name} is given a tensor of the host beside those of the device")
    if name.removeprefix("aten::") in _READS or (name in ("aten::index", "aten::index_put_") and _by_mask(args[1])):
        _note_read(name)
    _ops[name] += 1
    made = op(*pytree.tree_map(_on_host, args), **pytree.tree_map(_on_host, kwargs))
    in_place = name.endswith("_") and op._schema.is_mutable  # which aten::__rshift__ is not
    return args[0] if in_place and isinstance(args[0], OnChip) else pytree.tree_map(_on_chip, made)


def _copied(op: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    to = kwargs.get("device") if name == "aten::_to_copy" else (args[0] if name == "aten::copy_" else args[1]).device
    source = args[1] if name == "aten::copy_" else args[0]
    if isinstance(source, OnChip) and to is not None and torch.device(to).type == "cpu":
        if kwargs.get("non_blocking"):
            _rules["copies"] += 1
        else:
            _note_read("a copy to the host that waits")
    made = op(*pytree.tree_map(_on_host, args), **pytree.tree_map(_on_host, kwargs))
    if name == "aten::_to_copy":
        return made if to is not None and torch.device(to).type == "cpu" else _on_chip(made)
    return args[0] if name == "aten::copy_" else args[1]


def _note_read(what: str) -> None:
    if _rules["refuse"]:
        raise RuntimeError(f"fakechip: {what} is an implicit read of the device")
    _reads[what] += 1


def _by_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _on_host(value: Any) -> Any:
    if isinstance(value, OnChip):
        return value.host
    if isinstance(value, torch.device) and value.type == "fakechip":
        return torch.device("cpu")
    return value


def _on_chip(value: Any) -> Any:
    return OnChip(value) if isinstance(value, Tensor) and not isinstance(value, OnChip) else value


def _synchronize(device: Any = None, /) -> None:
    """Nothing is ever under way."""


_setup_privateuseone_for_python_backend("fakechip")
torch.accelerator.synchronize = _synchronize  # a device guard in Python has no such method to give
_library = torch.library.Library("aten", "IMPL")
for _name in ("empty.memory_format", "empty_strided", "_to_copy", "_copy_from"):
    _op = getattr(getattr(torch.ops.aten, _name.partition(".")[0]), _name.partition(".")[2] or "default")
    _library.impl(_name, lambda *args, _op=_op, **kwargs: _run(_op, args, kwargs), "PrivateUse1")
