"""Gold: linear and attention must be native; which composites are bound whole; the speed of each native op compared
with the reference. Also the support matrix."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tessera.ops import LinearSpec
from tessera.platform.attention import AttentionBackend
from tessera.platform.device import Device, Reason
from tessera.platform.ops import BoundOps, HotCall, Op
from tessera.reference.attention import ReferenceAttention
from tessera.testing.attention import VARIANTS, AttentionCase, AttentionTrial
from tessera.testing.conformance.attention import block_sizes, trial
from tessera.testing.conformance.case import (
    MARGIN,
    PASSED,
    Case,
    ConformanceError,
    Result,
    Timing,
    Verdict,
    absent,
    falls_back,
)
from tessera.testing.conformance.ops import dtype_of, has_native_parts, placed
from tessera.testing.conformance.target import Target
from tessera.testing.op_inputs import OpInputs

# ---- what is native


def native_cases(target: Target) -> Iterator[Case]:
    """One each for linear and attention in each dtype, and one per composite."""
    if target.brings_a_runner:
        yield Case("native", "gold", "native", lambda: absent("the platform has its own model runner"))
        return
    for dtype in target.platform.capabilities.dtypes:
        yield Case(f"native/linear-{dtype}", "gold", "native linear", partial(_linear, target, dtype))
        yield Case(f"native/attention-{dtype}", "gold", "native attention", partial(_attention, target, dtype))
    for name in target.ops.names():
        if target.ops[name].compose is not None:
            yield Case(f"composites/{name}", "gold", f"composite {name}", partial(_composite, target, target.ops[name]))


def _linear(target: Target, dtype: str) -> Verdict:
    kernel = target.ops["linear"].kernel
    reason = "no kernel" if kernel is None else kernel.supports(LinearSpec(72, 40, dtype))
    return _demanded("linear", dtype, reason)


def _attention(target: Target, dtype: str) -> Verdict:
    spec = AttentionCase(((1, 1),), dtype=dtype).spec()
    reasons = [backend.supports(spec) for backend in target.attention_backends if not backend.fallback]
    return _demanded("attention", dtype, None if None in reasons else "; ".join(map(str, reasons)) or "no backend")


def _demanded(what: str, dtype: str, reason: Reason | None) -> Verdict:
    if reason is not None:
        raise ConformanceError(f"gold requires a native {what}, but in {dtype} the reference runs: {reason}")
    return PASSED


def _composite(target: Target, op: Op[Any]) -> Verdict:
    """Checks that the composite is bound whole where its kernel supports it; bronze compares it with its parts."""
    if op.kernel is None:
        return falls_back("no kernel: bound as its parts")
    assert op.sample_specs is not None
    claimed, ops = target.platform.capabilities.dtypes, target.bound()
    specs = [spec for spec in op.sample_specs() if dtype_of(spec) in (None, *claimed)]
    reasons = [op.kernel.supports(spec) for spec in specs]
    for spec, reason in zip(specs, reasons, strict=True):
        ops.bind(op.name, spec)
        if reason is None and ops.choices[op.name, spec].how != "native":
            raise ConformanceError(f"{op.name} of {spec}: its kernel supports the spec, but it was bound as its parts")
    return PASSED if None in reasons else falls_back(str(reasons[0]))


# ---- the support matrix


DTYPES = ("float32", "bfloat16", "float16")
NATIVE, PARTLY, PARTS, REFERENCE, ABSENT = "native", "native in part", "native parts", "reference", "n/a"


def matrix(target: Target, results: Sequence[Result] = ()) -> str:
    """The support matrix, a Markdown table of ops by dtype. results: of a run, whose failures and speeds it shows."""
    wrong = {result.case.subject for result in results if result.status == "failed"}
    speeds = _speeds(results)
    lines = ["| Op |" + "".join(f" {dtype} |" for dtype in DTYPES), "|---|" + "---|" * len(DTYPES)]
    for name, cells in support(target):
        said = [_cell(cells[dtype], speeds.get((name, dtype)), wrong=name in wrong) for dtype in DTYPES]
        lines.append(f"| `{name}` | {' | '.join(said)} |")
    return "\n".join(lines)


def support(target: Target) -> Iterator[tuple[str, Mapping[str, str]]]:
    """For each op, and for attention: what runs in each dtype."""
    claimed = target.platform.capabilities.dtypes
    for name in target.ops.names():
        op = target.ops[name]
        yield name, {dtype: _op_cell(target, op, dtype) if dtype in claimed else ABSENT for dtype in DTYPES}
    yield "attention", {dtype: _attention_cell(target, dtype) if dtype in claimed else ABSENT for dtype in DTYPES}


def _op_cell(target: Target, op: Op[Any], dtype: str) -> str:
    """Judges by the op's sample specs in this dtype or, if there are none, by the spec of a served model."""
    if target.brings_a_runner:
        return ABSENT
    without = PARTS if has_native_parts(target.ops, op) else REFERENCE
    if op.kernel is None:
        return without
    sampled = op.sample_specs() if op.sample_specs is not None else ()
    specs = [spec for spec in sampled if dtype_of(spec) in (None, dtype)]
    if not specs and not op.any_dtype:
        specs = [realistic(op, dtype)]
    return _judged([op.kernel.supports(spec) is None for spec in specs], without)


def _attention_cell(target: Target, dtype: str) -> str:
    if target.brings_a_runner:
        return ABSENT
    backends = [backend for backend in target.attention_backends if not backend.fallback]
    cases = [AttentionCase(((1, 1),), dtype=dtype, **different) for different in VARIANTS.values()]  # type: ignore[arg-type]  # counts are whole
    return _judged([any(backend.supports(case.spec()) is None for backend in backends) for case in cases], REFERENCE)


def _judged(native: Sequence[bool], without: str) -> str:
    if not any(native):
        return without
    return NATIVE if all(native) else PARTLY


def _speeds(results: Sequence[Result]) -> Mapping[tuple[str, str], str]:
    """By op and dtype, how many times as fast as the reference it is at each number of tokens."""
    found: dict[tuple[str, str], list[str]] = {}
    for timing in (timing for result in results for timing in result.timings):
        found.setdefault((timing.op, timing.dtype), []).append(f"{timing.ratio:.1f}")
    return {place: " / ".join(ratios) for place, ratios in found.items()}


def _cell(cell: str, speed: str | None, *, wrong: bool) -> str:
    if wrong and cell not in (REFERENCE, ABSENT):
        return f"{cell}, wrong"
    return cell if speed is None else f"{cell}, {speed} times as fast"


# ---- speed: --perf, and gold


TOKENS = (1, 16, 128)
"""One decode row, several, and a chunk of a prompt."""
_LAUNCHES = {16: tuple((1, 256) for _ in range(16)), 128: ((128, 128),)}  # rows of a launch, by its tokens


def perf_cases(target: Target, *, judged: bool = True) -> Iterator[Case]:
    """One case per dtype for each op with a kernel and each backend. judged: being slower than the reference is a
    failure."""
    if target.brings_a_runner:
        return
    for name in target.ops.names():
        op = target.ops[name]
        if op.kernel is not None and op.inputs is not None:
            for dtype in _dtypes(target, op):
                yield Case(f"perf/{name}-{dtype}", "gold", name, partial(_of_op, target, op, dtype, judged), True)
    for backend in target.attention_backends:
        for dtype in target.platform.capabilities.dtypes:
            yield Case(
                f"perf/{backend.name}-attention-{dtype}", "gold", "attention",
                partial(_of_attention, target, backend, dtype, judged), True,
            )  # fmt: skip


def realistic(op: Op[Any], dtype: str) -> Any:
    """A spec of the size of a served model. If the op has none, its first sample spec in this dtype; None if there is
    none either."""
    if op.served_spec is not None:
        return op.served_spec(dtype)
    specs = op.sample_specs() if op.sample_specs is not None else ()
    return next((spec for spec in specs if dtype_of(spec) in (None, dtype)), None)


def _dtypes(target: Target, op: Op[Any]) -> tuple[str, ...]:
    claimed = target.platform.capabilities.dtypes
    differs = op.any_dtype or realistic(op, claimed[0]) != realistic(op, claimed[-1])
    return claimed if differs or len(claimed) == 1 else claimed[:1]


def _of_op(target: Target, op: Op[Any], dtype: str, judged: bool) -> Verdict:
    spec = realistic(op, dtype)
    if spec is None:
        return falls_back(f"none of its sample specs is in {dtype}")
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
    """A call of the op as the platform binds it, or as core does."""
    bound = target.bound() if native else BoundOps(target.reference, target.device, target.bound().groups)
    call: HotCall = bound.bind(op.name, spec)
    arguments = placed(OpInputs(tokens, ops=bound, dtype=dtype).arguments(op, spec), target.device.target)
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


def _attention_call(trial: AttentionTrial) -> Call:
    """A call of attend() for one launch over a filled cache."""
    trial.run()
    held, launch, starts = next(trial.launches(trial.grants))
    q = trial.laid(launch, starts, [trial.queries[row][:tokens] for tokens, _, row in held])
    return partial(trial.layer.attend, q, trial.caches, launch.plans[0])


def _timed(target: Target, name: str, dtype: str, tokens: int, native: Call, reference: Call) -> Timing:
    """Measures again, up to REPEATS times, while the kernel seems slower."""
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


# ---- measurement: calls alternate, so that both see the machine in the same state


REPEATS = 3
"""How many measurements in a row must find a kernel slower before it is called slower."""

_RUNS, _RUNS_OF_LONG = 7, 3
_LONG = 0.03  # seconds; longer calls have fewer runs
_SHORTEST = 0.002  # seconds; a run repeats the call to last this long
_MOST_CALLS = 200

Call = Callable[[], object]


def seconds(device: Device, calls: Sequence[Call]) -> list[float]:
    """Seconds per call of each: the median of several runs after a warm-up. The runs alternate."""
    numbers = [_warmed(device, call) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    while len(taken[0]) < (_RUNS_OF_LONG if taken[0] and taken[0][0] > _LONG else _RUNS):
        for call, number, times in zip(calls, numbers, taken, strict=True):
            times.append(_run(device, call, number) / number)
    return [statistics.median(times) for times in taken]


@torch.inference_mode()
def _run(device: Device, call: Call, number: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        call()
    device.synchronize()
    return time.perf_counter() - start


def _warmed(device: Device, call: Call) -> int:
    """Warms up; returns how many calls a run makes."""
    _run(device, call, 1)
    once = max(_run(device, call, 1), 1e-7)
    return max(1, min(_MOST_CALLS, int(_SHORTEST / once)))
