"""Every op: its spec, its reference in plain torch and its test inputs, in one module per group.

To add an op, only its group's file changes: it gets a spec, a reference whose docstring begins with the op's arguments
and result, and a row of OPS. Platform packages import the specs from tessera.platform, which looks them up here.
docs/decisions/ops.md has the rules.
"""

from __future__ import annotations

from tessera.ops import linear, lora, mlp, moe, norms, quantize, rotary, sampling
from tessera.ops.linear import *
from tessera.ops.lora import *
from tessera.ops.mlp import *
from tessera.ops.moe import *
from tessera.ops.norms import *
from tessera.ops.quantize import *
from tessera.ops.rotary import *
from tessera.ops.sampling import *
from tessera.platform.ops import OpSet

GROUPS = (linear, norms, rotary, mlp, quantize, moe, lora, sampling)
"""Modules of ops, in the order of the table. The names in a group's __all__ are part of tessera.platform."""

REFERENCE = OpSet.collect(op for group in GROUPS for op in group.OPS)
"""All ops of core, none with a kernel."""
