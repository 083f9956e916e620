"""--perf, and gold: how fast each native op is beside the reference on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tessera.platform.attention import AttentionBackend
from tessera.platform.ops import BoundOps, HotCall, Op
from tessera.reference.attention import ReferenceAttention
from tessera.testing.attention_cases import AttentionCase
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.conformance.arguments import placed
from tessera.testing.conformance.attention import block_sizes, trial
from tessera.testing.conformance.case import Case, ConformanceError, Verdict, falls_back
from tessera.testing.conformance.perf_sizes import TOKENS, realistic
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.timing import MARGIN, REPEATS, Call, Timing, seconds
from tessera.testing.op_inputs import IN_THE_MODELS_DTYPE, OpInputs

_LAUNCHES = {16: tuple((1, 256) for _ in range(16)), 128: ((128, 128),)}  # rows by tokens of a launch


def perf_cases(target: Target, *, judged: bool = True) -> Iterator[Case]:
    """One an op with a kernel and dtype, and one a backend. judged: slower than the reference is wrong."""
    if target.brings_a_runner:
        return
    for name in target.ops.names():
        op = target.ops[name]
        if op.kernel is not None:
            for dtype in _dtypes(target, op):
                yield Case(f"perf/{name}-{dtype}", "gold", name, partial(_of_op, target, op, dtype, judged), True)
    for backend in target.backends:
        for dtype in target.platform.capabilities.dtypes:
            yield Case(
                f"perf/{backend.name}-attention-{dtype}", "gold", "attention",
                partial(_of_attention, target, backend, dtype, judged), True,
            )  # fmt: skip


def _dtypes(target: Target, op: Op[Any]) -> tuple[str, ...]:
    claimed = target.platform.capabilities.dtypes
    differs = op.name in IN_THE_MODELS_DTYPE or realistic(op, claimed[0]) != realistic(op, claimed[-1])
    return claimed if differs or len(claimed) == 1 else claimed[:1]


def _of_op(target: Target, op: Op[Any], dtype: str, judged: bool) -> Verdict:
    spec = realistic(op, dtype)
    if spec is None:
        return falls_back(f"none of its sample specs is of {dtype}")
    assert op.kernel is not None
    reason = op.kernel.supports(spec)
    if reason is not None:
        return falls_back(reason)
    target.open()
    timings = []
    for tokens in TOKENS:
        native, reference = (_op_call(target, op, spec, dtype, tokens, native=native) for native in (True, False))
        timings.append(_timed(target, op.name, dtype, tokens, native, reference))
    return _verdict(timings, judged)


def _op_call(target: Target, op: Op[Any], spec: Any, dtype: str, tokens: int, *, native: bool) -> Call:
    """Of the platform's kernel, or of the op as core has it."""
    bound = target.bound() if native else BoundOps(target.reference, target.device, target.bound().groups)
    call: HotCall = bound.bind(op.name, spec)
    arguments = placed(OpInputs(tokens, ops=bound, dtype=dtype).of(op.name, spec), target.device.target)
    return partial(call, *arguments)


def _of_attention(target: Target, backend: AttentionBackend, dtype: str, judged: bool) -> Verdict:
    target.open()
    timings = []
    for tokens, rows in _LAUNCHES.items():
        case = AttentionCase(rows, heads=16, kv_heads=4, head_dim=64, dtype=dtype)
        reason = backend.supports(case.spec())
        if reason is not None:
            return falls_back(reason)
        case = AttentionCase(rows, block_sizes(backend, case)[0], 16, 4, 64, dtype=dtype)
        made = trial(target, backend, case)
        plain = AttentionTrial(
            ReferenceAttention(), made.case, index_dtype=made.index_dtype, ops=made.ops, shaping=made.shaping
        )
        native, reference = (_attention_call(one) for one in (made, plain))
        timings.append(_timed(target, "attention", dtype, tokens, native, reference))
    return _verdict(timings, judged)


def _attention_call(made: AttentionTrial) -> Call:
    """attend of one launch over a cache that is filled."""
    made.run()
    held, launch, starts = next(made.launches(made.grants))
    q = made.laid(launch, starts, [made.queries[row][:tokens] for tokens, _, row in held])
    return partial(made.layer.attend, q, made.caches, launch.plans[0])


def _timed(target: Target, name: str, dtype: str, tokens: int, native: Call, reference: Call) -> Timing:
    """Measured again where it seems slower."""
    for _ in range(REPEATS):
        timing = Timing(name, dtype, tokens, *seconds(target.device, (native, reference)))
        if not timing.slower:
            break
    return timing


def _verdict(timings: list[Timing], judged: bool) -> Verdict:
    slow = [timing for timing in timings if timing.slower]
    if slow and judged:
        worst = min(slow, key=lambda timing: timing.ratio)
        raise ConformanceError(
            f"{worst.op} in {worst.dtype} at {worst.tokens} tokens takes {worst.native * 1e6:.0f} us, the reference on "
            f"this device {worst.reference * 1e6:.0f} us: slower by more than {MARGIN:.0%}, {REPEATS} times",
            timings=timings,
        )
    return Verdict(timings=tuple(timings))
