"""The support matrix: who computes each op in each dtype, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.platform.ops import Op
from tessera.testing.attention_cases import VARIANTS, AttentionCase
from tessera.testing.conformance.case import Result
from tessera.testing.conformance.ops import dtype_of, has_native_parts
from tessera.testing.conformance.perf_sizes import realistic
from tessera.testing.conformance.target import Target
from tessera.testing.op_inputs import IN_THE_MODELS_DTYPE

DTYPES = ("float32", "bfloat16", "float16")
NATIVE, SOME, PARTS, REFERENCE, ABSENT = "native", "native in part", "native parts", "reference", "n/a"


def matrix(target: Target, results: Sequence[Result] = ()) -> str:
    """A table of ops by dtype. results: of a run, whose failures and speeds are told."""
    wrong = {result.case.subject for result in results if result.status == "failed"}
    speeds = _speeds(results)
    lines = ["| Op |" + "".join(f" {dtype} |" for dtype in DTYPES), "|---|" + "---|" * len(DTYPES)]
    for name, cells in support(target):
        said = [_said(cells[dtype], speeds.get((name, dtype)), wrong=name in wrong) for dtype in DTYPES]
        lines.append(f"| `{name}` | {' | '.join(said)} |")
    return "\n".join(lines)


def support(target: Target) -> Iterator[tuple[str, Mapping[str, str]]]:
    """By op, and attention, what each dtype has."""
    claimed = target.platform.capabilities.dtypes
    for name in target.ops.names():
        op = target.ops[name]
        yield name, {dtype: _of_op(target, op, dtype) if dtype in claimed else ABSENT for dtype in DTYPES}
    yield "attention", {dtype: _of_attention(target, dtype) if dtype in claimed else ABSENT for dtype in DTYPES}


def _of_op(target: Target, op: Op[Any], dtype: str) -> str:
    """At the op's sample specs in this dtype, and at the size of a served model."""
    if target.brings_a_runner:
        return ABSENT
    without = PARTS if has_native_parts(target.ops, op) else REFERENCE
    if op.kernel is None:
        return without
    sampled = op.sample_specs() if op.sample_specs is not None else ()
    specs = [spec for spec in sampled if dtype_of(spec) in (None, dtype)]
    if not specs and op.name not in IN_THE_MODELS_DTYPE:
        specs = [realistic(op, dtype)]
    return _judged([op.kernel.supports(spec) is None for spec in specs], without)


def _of_attention(target: Target, dtype: str) -> str:
    if target.brings_a_runner:
        return ABSENT
    backends = [backend for backend in target.backends if not backend.fallback]
    cases = [AttentionCase(((1, 1),), dtype=dtype, **different) for different in VARIANTS.values()]  # type: ignore[arg-type]  # counts are whole
    return _judged([any(backend.supports(case.spec()) is None for backend in backends) for case in cases], REFERENCE)


def _judged(native: Sequence[bool], without: str) -> str:
    if not any(native):
        return without
    return NATIVE if all(native) else SOME


def _speeds(results: Sequence[Result]) -> Mapping[tuple[str, str], str]:
    """By op and dtype, how many times as fast as the reference it is at each number of tokens."""
    found: dict[tuple[str, str], list[str]] = {}
    for timing in (timing for result in results for timing in result.timings):
        found.setdefault((timing.op, timing.dtype), []).append(f"{timing.ratio:.1f}")
    return {place: " / ".join(ratios) for place, ratios in found.items()}


def _said(cell: str, speed: str | None, *, wrong: bool) -> str:
    if wrong and cell not in (REFERENCE, ABSENT):
        return f"{cell}, wrong"
    return cell if speed is None else f"{cell}, {speed} times as fast"
