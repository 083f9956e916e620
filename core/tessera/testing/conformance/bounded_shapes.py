"""Silver: a platform of static shapes gets launches of the keys that it names alone, whose padding leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tessera.platform.launch import LaunchKey, LaunchShape, ShapePolicy, StepShape
from tessera.testing.conformance.cache_guard import CacheGuard
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny_run import TinyRun, prompts_of

_BATCHES = ((1,), (2, 1), (7, 40, 3), (70, 1, 9, 24, 33), (5, 6, 16, 17, 49, 130, 2, 8))  # lengths of prompts


def shape_cases(target: Target) -> Iterator[Case]:
    for name, check in (("keys", _keys), ("padding", _padding)):
        yield Case(f"shapes/{name}", "silver", f"shapes: {name}", partial(_if_bounded, target, check))


@dataclass
class RecordedShapes(ShapePolicy):
    """A policy, and whatever is wrong with what it said."""

    policy: ShapePolicy
    launched: int = 0
    problems: list[str] = field(default_factory=list)

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        shapes = self.policy.launches(step)
        self.launched += len(shapes)
        self.problems += [f"{problem} ({_said(step)})" for problem in problems_of(step, shapes, self.keys())]
        return shapes

    def keys(self) -> Sequence[LaunchKey]:
        return self.policy.keys()


def problems_of(step: StepShape, shapes: Sequence[LaunchShape], keys: Sequence[LaunchKey]) -> Iterator[str]:
    """What is wrong with the launches of a step; keys: those that the policy names."""
    done = 0
    for shape in shapes:
        key, part = shape.key, slice(shape.first, shape.last)
        lengths = step.query_lens[part]
        if shape.first != done or shape.last <= shape.first:
            yield f"rows {shape.first} to {shape.last} do not follow row {done}"
        done = shape.last
        if replace(key, bits=frozenset()) not in keys:
            yield f"it launches {_key(key)}, which keys() does not name"
        if not step.bits <= key.bits:
            yield f"{_key(key)} leaves out the step's bits"
        if len(lengths) > key.rows:
            yield f"{_key(key)} has {len(lengths)} rows"
            continue
        if len(lengths) and int(lengths.max()) > key.width:
            yield f"{_key(key)} has a row of {int(lengths.max())} tokens"
        needed = shape.stride * (len(lengths) - 1) + int(lengths[-1]) if shape.stride else int(lengths.sum())
        if needed > key.tokens:
            yield f"{_key(key)} has {needed} tokens"
        if shape.stride and len(lengths) > 1 and int(lengths[:-1].max()) > shape.stride:
            yield f"{_key(key)}: rows of {int(lengths.max())} tokens begin every {shape.stride}"
        if int(step.blocks[part].max()) > key.blocks:
            yield f"{_key(key)} has a row of {int(step.blocks[part].max())} blocks"
        if key.kind == "decode" and shape.last > step.num_decode:
            yield f"{_key(key)} holds rows that do not decode"
    if done != len(step.query_lens):
        yield f"{len(step.query_lens) - done} rows are in no launch"


def _if_bounded(target: Target, check: Callable[[TinyRun, ShapePolicy], None]) -> Verdict:
    if target.brings_a_runner:
        return absent("it brings a runner of its own")
    with TinyRun(target, target.exact_dtype, positions=256, enable_prefix_caching=False) as run:
        policy: ShapePolicy = run.runner.shapes
        if not policy.keys():
            if target.platform.capabilities.static_shapes:
                raise ConformanceError("it declares static_shapes, but its policy names no keys")
            return absent("its shapes are exact")
        check(run, policy)
    return PASSED


def _keys(run: TinyRun, policy: ShapePolicy) -> None:
    recorded = RecordedShapes(policy)
    run.runner.builder.shapes = recorded
    _asked(run)
    if recorded.problems:
        raise ConformanceError(f"launch shapes: {recorded.problems[0]}")
    assert recorded.launched


def _padding(run: TinyRun, policy: ShapePolicy) -> None:
    guard = CacheGuard()
    run.executor.observers.append(guard)
    _asked(run)
    assert guard.steps


def _asked(run: TinyRun) -> None:
    for number, lengths in enumerate(_BATCHES):
        run.ask(prompts_of(lengths, seed=number), 6 + number)


def _key(key: LaunchKey) -> str:
    return f"{key.kind} of {key.rows} rows, width {key.width}, {key.blocks} blocks, {key.tokens} tokens"


def _said(step: StepShape) -> str:
    lengths = f"query_lens {step.query_lens.tolist()}, seq_lens {step.seq_lens.tolist()}"
    return f"a step of {step.num_decode} rows that decode, {lengths}"
