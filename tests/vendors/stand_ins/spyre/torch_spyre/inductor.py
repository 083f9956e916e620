"""What torch's compiler makes of programs for the device: it has the indexed reads and writes of the published table of
ops, and the dtypes of the device."""

from __future__ import annotations

import warnings

import torch
from torch_fakechip import ahead

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of its own parts
    import torch._inductor.compile_fx as inductor

_DTYPES = {torch.float16, torch.float32, torch.int64, torch.int32, torch.bool}
_WITHOUT = {"aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten.index", "aten.scatter"}
"""Indexed reads and writes that the table does not have: it has index_select, index_copy and embedding."""

ops: set[str] = set()
"""Of all programs that were compiled."""


def check(graph):
    for node in graph.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = str(node.target.overloadpacket)
        if name in _WITHOUT:
            raise TypeError(f"the device's compiler has no {name}")
        made = node.meta["val"]
        for one in made if isinstance(made, tuple | list) else [made]:
            if one.dtype not in _DTYPES:
                raise TypeError(f"{name} makes {one.dtype}, which the device does not have")
        ops.add(name.removeprefix("aten."))


_compiled = ahead.backend(check)
_others = inductor.compile_fx


def compile_fx(graph, inputs, **options):
    """Programs of this device; those of others are torch's."""
    if any(one.device.type == "spyre" for one in inputs):
        return _compiled(graph, inputs)
    return _others(graph, inputs, **options)


inductor.compile_fx = compile_fx
