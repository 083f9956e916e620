"""Gold: linear and attention are native; and which composites are bound whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tessera.platform.device import Reason
from tessera.platform.ops import LinearSpec, Op
from tessera.testing.attention_cases import AttentionCase
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.ops import dtype_of
from tessera.testing.conformance.target import Target


def native_cases(target: Target) -> Iterator[Case]:
    """One each for linear and attention in each dtype, and one a composite."""
    if target.brings_a_runner:
        yield Case("native", "gold", "native", lambda: absent("it brings a runner of its own"))
        return
    for dtype in target.platform.capabilities.dtypes:
        yield Case(f"native/linear-{dtype}", "gold", "native linear", partial(_linear, target, dtype))
        yield Case(f"native/attention-{dtype}", "gold", "native attention", partial(_attention, target, dtype))
    for name in target.ops.names():
        if target.ops[name].compose is not None:
            yield Case(f"composites/{name}", "gold", f"composite {name}", partial(_composite, target, target.ops[name]))


def _linear(target: Target, dtype: str) -> Verdict:
    kernel = target.ops.linear.kernel
    reason = "no kernel" if kernel is None else kernel.supports(LinearSpec(72, 40, dtype))
    return _demanded("linear", dtype, reason)


def _attention(target: Target, dtype: str) -> Verdict:
    spec = AttentionCase(((1, 1),), dtype=dtype).spec()
    reasons = [backend.supports(spec) for backend in target.backends if not backend.fallback]
    return _demanded("attention", dtype, None if None in reasons else "; ".join(map(str, reasons)) or "no backend")


def _demanded(what: str, dtype: str, reason: Reason | None) -> Verdict:
    if reason is not None:
        raise ConformanceError(f"gold wants a native {what}, and in {dtype} it is the reference: {reason}")
    return PASSED


def _composite(target: Target, op: Op[Any]) -> Verdict:
    """Bound whole at some place; bronze has compared it with its parts there."""
    if op.kernel is None:
        return falls_back("no kernel, so it is bound as its parts")
    assert op.sample_specs is not None
    claimed, ops = target.platform.capabilities.dtypes, target.bound()
    specs = [spec for spec in op.sample_specs() if dtype_of(spec) in (None, *claimed)]
    reasons = [op.kernel.supports(spec) for spec in specs]
    for spec, reason in zip(specs, reasons, strict=True):
        ops.bind(op.name, spec)
        if reason is None and ops.choices[op.name, spec].how != "native":
            raise ConformanceError(f"{op.name} of {spec}: its kernel supports it, and yet it is bound as its parts")
    return PASSED if None in reasons else falls_back(str(reasons[0]))
