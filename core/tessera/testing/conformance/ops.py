"""Bronze: every op that the platform overrides, against the reference, at each of the op's sample specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from tessera.platform.ops import Op, OpSet
from tessera.testing.conformance.case import PASSED, Case, Verdict, absent, falls_back
from tessera.testing.conformance.op_trial import OpTrial
from tessera.testing.conformance.target import Target
from tessera.testing.op_inputs import IN_THE_MODELS_DTYPE

TOKENS = (19, 1, 2, 0)


def op_cases(target: Target) -> Iterator[Case]:
    """One a spec; one in all for an op that the platform leaves to core."""
    for name in target.ops.names():
        op = target.ops[name]
        if target.brings_a_runner:
            yield Case(f"op/{name}", "bronze", name, lambda: absent("it brings a runner of its own"))
        elif op.sample_specs is None or not (op.kernel is not None or has_native_parts(target.ops, op)):
            yield Case(f"op/{name}", "bronze", name, lambda: falls_back("no kernel"))
        else:
            for number, spec in enumerate(op.sample_specs()):
                yield Case(f"op/{name}/{number}", "bronze", name, partial(_check, target, op, spec))


def has_native_parts(ops: OpSet, op: Op[Any]) -> bool:
    """Whether a composite that is bound as its parts may run a kernel of the platform's."""
    return any(ops[part].kernel is not None or has_native_parts(ops, ops[part]) for part in op.parts)


def _native_inside(target: Target, op: Op[Any], spec: Any) -> bool:
    """Whether a part of a composite is native at this place, which that part's own supports says."""
    bound = target.bound()
    if has_native_parts(target.ops, op):
        bound.bind(op.name, spec)
    return any(choice.how == "native" for choice in bound.choices.values())


def dtype_of(spec: Any) -> str | None:
    """The dtype of a spec's activations, inner specs asked in order; None: it does not say."""
    if getattr(spec, "dtype", None) is not None:
        return str(spec.dtype)
    parts = (getattr(spec, field.name) for field in dataclasses.fields(spec))
    return next((found for part in parts if dataclasses.is_dataclass(part) and (found := dtype_of(part))), None)


def _check(target: Target, op: Op[Any], spec: Any) -> Verdict:
    own, claimed = dtype_of(spec), target.platform.capabilities.dtypes
    if own is not None and own not in claimed:
        return absent(f"{own} is not among its dtypes")
    reason = "no kernel" if op.kernel is None else op.kernel.supports(spec)
    if reason is not None and not _native_inside(target, op, spec):
        return falls_back(reason)
    model = claimed if op.name in IN_THE_MODELS_DTYPE else ("float32",)
    for dtype in model if own is None else (own,):
        for tokens in TOKENS:
            OpTrial(target, op, spec, dtype, tokens, native=reason is None).check()
    return PASSED
