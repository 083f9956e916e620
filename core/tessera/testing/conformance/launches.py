"""Launches: if the shape policy lists keys, launches have only these, and their padding leaves no trace (silver);
captured launches return the same as eager ones (gold)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tessera.engine.engine import silent
from tessera.platform.attention import Plane
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Buffers, Launch, LaunchKey
from tessera.platform.runner import CacheGroup, ModelRunner
from tessera.platform.shapes import LaunchShape, ShapePolicy, StepShape, pieces_key
from tessera.runner.runner import CoreRunner
from tessera.step import SchedulerOutput
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, named
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import TinyAnswers, TinyRun, compare_answers, prompts_of

# ---- shapes


_SHAPED = ((1,), (2, 1), (7, 40, 3), (70, 1, 9, 24, 33), (5, 6, 16, 17, 49, 130, 2, 8))  # lengths of prompts


def shape_cases(target: Target) -> Iterator[Case]:
    for name, check in (("keys", _keys), ("padding", _padding)):
        yield Case(f"shapes/{name}", "silver", f"shapes: {name}", partial(_if_bounded, target, check))


@dataclass
class RecordedShapes(ShapePolicy):
    """A policy, and what is wrong with the launches that it returned. static: every launch must have a listed key."""

    policy: ShapePolicy
    static: bool
    launched: int = 0
    problems: list[str] = field(default_factory=list)

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        shapes = self.policy.launches(step)
        self.launched += len(shapes)
        self.problems += [
            f"{problem} ({_describe_step(step)})" for problem in problems_of(step, shapes, self.keys(), self.static)
        ]
        return shapes

    def keys(self) -> Sequence[LaunchKey]:
        return self.policy.keys()


def problems_of(
    step: StepShape, shapes: Sequence[LaunchShape], keys: Sequence[LaunchKey], static: bool
) -> Iterator[str]:
    """What is wrong with the launches of a step. keys: those that the policy lists. static: others are not allowed; if
    not, only a launch that is padded must have one."""
    done = 0
    for shape in shapes:
        key, part = shape.key, slice(shape.first, shape.last)
        lengths = step.query_lens[part]
        if shape.first != done or shape.last <= shape.first:
            yield f"a launch of rows {shape.first} to {shape.last} does not begin at row {done}"
        done = shape.last
        padded = len(lengths) < key.rows or int(lengths.sum()) < key.tokens
        in_pieces = not static and len(lengths) == key.rows and pieces_key(key.tokens) in keys
        if (static or padded) and not in_pieces and replace(key, bits=frozenset()) not in keys:
            yield f"{_key(key)} is not among keys()"
        if not step.bits <= key.bits:
            yield f"{_key(key)} lacks the step's bits"
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
        yield from _wrong_kind(step, shape)
    if done != len(step.query_lens):
        yield f"{len(step.query_lens) - done} rows are in no launch"


def _wrong_kind(step: StepShape, shape: LaunchShape) -> Iterator[str]:
    key, drafts = shape.key, int(step.query_lens[: step.num_decode].max(initial=1)) > 1
    if key.kind in ("decode", "verify") and shape.last > step.num_decode:
        yield f"{_key(key)} holds rows that do not decode"
    if key.kind != "verify" and drafts and int(step.query_lens[shape.first : shape.last].max()) > 1:
        yield f"{_key(key)} holds drafts, which only a launch of kind verify may"


def _if_bounded(target: Target, check: Callable[[TinyRun, ShapePolicy], None]) -> Verdict:
    if target.brings_a_runner:
        return absent("the platform has its own model runner")
    with TinyRun(target, target.exact_dtype, positions=256, enable_prefix_caching=False) as run:
        policy: ShapePolicy = run.runner.shapes
        if not policy.keys():
            if target.platform.capabilities.static_shapes:
                raise ConformanceError("static_shapes is declared, but keys() of the shape policy is empty")
            return absent("its launches have exact shapes")
        check(run, policy)
    return PASSED


def _keys(run: TinyRun, policy: ShapePolicy) -> None:
    recorded = RecordedShapes(policy, run.runner.platform.capabilities.static_shapes)
    run.runner.builder.shapes = recorded
    _add_requests(run)
    if recorded.problems:
        raise ConformanceError(f"launch shapes: {recorded.problems[0]}")
    assert recorded.launched


def _padding(run: TinyRun, policy: ShapePolicy) -> None:
    guard = CacheGuard()
    run.executor.observers.append(guard)
    _add_requests(run)
    assert guard.steps


def _add_requests(run: TinyRun) -> None:
    for number, lengths in enumerate(_SHAPED):
        run.ask(prompts_of(lengths, seed=number), 6 + number)


def _key(key: LaunchKey) -> str:
    return f"{key.kind} of {key.rows} rows, width {key.width}, {key.blocks} blocks, {key.tokens} tokens"


def _describe_step(step: StepShape) -> str:
    lengths = f"query_lens {step.query_lens.tolist()}, seq_lens {step.seq_lens.tolist()}"
    return f"a step of {step.num_decode} rows that decode, {lengths}"


_FREE = 0x5A  # in every byte of a block that no row holds


class CacheGuard:
    """An observer of steps at op depth, for an engine without prefix caching. Fills the blocks that no row holds before
    each step. Raises ConformanceError after a step that wrote to slots it does not compute; padding may write to the
    null block."""

    def __init__(self) -> None:
        self.steps = 0

    @contextmanager
    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> Iterator[None]:
        assert isinstance(runner, CoreRunner)
        if step is None:
            yield
            return
        for number, group in enumerate(runner.plan.groups):
            if group.grows:
                _fill_free(runner, number, group)
        before = [_bytes(buffers) for buffers in runner.memory.buffers]
        yield
        runner.device.synchronize()
        self.steps += 1
        for number, group in enumerate(runner.plan.groups):
            if group.grows:
                after = _bytes(runner.memory.buffers[number])
                changed = [old != new for old, new in zip(before[number], after, strict=True)]
                _check_changes(runner, group, changed, _granted(runner, number, group, step))


def _bytes(buffers: Sequence[Tensor]) -> list[Tensor]:
    return [buffer.detach().to("cpu", copy=True) for buffer in buffers]


def _fill_free(runner: CoreRunner, number: int, group: CacheGroup) -> None:
    """Makes a write to a free block show, even if the same bytes are written in every step."""
    held = torch.zeros(group.num_blocks, dtype=torch.bool)
    held[torch.from_numpy(runner.batch.tables[number].astype("int64")).flatten()] = True
    free = (~held).nonzero()[:, 0].to(runner.device.target)
    for buffer in runner.memory.buffers[number]:
        buffer[free] = _FREE


def _granted(runner: CoreRunner, number: int, group: CacheGroup, step: SchedulerOutput) -> Tensor:
    """A mask [blocks, tokens of a block] of the slots that the step may write."""
    may = torch.zeros(group.num_blocks, group.block_size, dtype=torch.bool)
    may[0] = True
    for copy in step.copies:
        if copy.group == number:
            may[torch.from_numpy(copy.targets.astype("int64"))] = True
    for row, start, tokens in zip(step.rows, step.starts, step.num_scheduled_tokens, strict=True):
        for position in range(start, start + tokens):
            may[int(runner.batch.tables[number][row, position // group.block_size]), position % group.block_size] = True
    return may


def _check_changes(runner: CoreRunner, group: CacheGroup, changed: Sequence[Tensor], may: Tensor) -> None:
    """changed: by buffer of the group."""
    memory = runner.memory
    for layer in group.layers:
        for plane, (buffer, start) in zip(memory.layouts[layer].planes, memory.places[layer], strict=True):
            here = changed[buffer][:, start : start + plane.nbytes]
            wrong = _by_token(plane, here, group.block_size) & ~may
            if wrong.any():
                block, token = wrong.nonzero()[0].tolist()
                raise ConformanceError(
                    f"a step wrote to {plane.name!r} of layer {layer} at token {token} of block {block}, which it does "
                    "not compute; padding has to be written to block 0",
                    {"wrong": wrong},
                )


def _by_token(plane: Plane, changed: Tensor, block_size: int) -> Tensor:
    """[blocks, bytes of a plane] -> [blocks, tokens]. If a plane has no axis "token", all tokens of its block count as
    changed."""
    width = plane.nbytes // max(torch.Size(plane.shape).numel(), 1)
    whole = changed.view(len(changed), *plane.shape, width)
    axes = [place for place, (name, _) in enumerate(plane.axes) if name == "token"]
    if not axes:
        return changed.any(1, keepdim=True) & torch.zeros(1, block_size, dtype=torch.bool)
    by_token = whole.movedim([axis + 1 for axis in axes], list(range(1, len(axes) + 1)))
    return by_token.reshape(len(changed), block_size, -1).any(-1)


# ---- captured launches


_CAPTURED = ((9,), (3, 40), (70, 1, 9, 24, 33), (5, 6, 16, 17, 49, 130, 2, 8), (25, 1))  # lengths of prompts


def graph_cases(target: Target) -> Iterator[Case]:
    for name, check in (("replay", _replay), ("invalidate", _invalidate)):
        yield Case(f"graphs/{name}", "gold", "graph capture", partial(_if_captured, target, check))


@dataclass
class ComparedGraphs(GraphRunner):
    """Replays each launch, then runs it eagerly. Raises ConformanceError if rows differ."""

    graphs: GraphRunner
    dtype: str
    replays: int = 0
    eager: dict[LaunchKey, Callable[[Launch], Any]] = field(default_factory=dict)

    def captures_mixers(self, key: LaunchKey) -> bool:
        return self.graphs.captures_mixers(key)

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        return self.graphs.keys(shapes, rows)

    def key_of(self, key: LaunchKey) -> LaunchKey:
        return self.graphs.key_of(key)

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        self.eager[key] = forward
        return self.graphs.capture(key, forward, launch, buffers)

    def replay(self, executable: Any, launch: Launch) -> Any:
        found = self.graphs.replay(executable, launch).clone()
        expected = self.eager[self.key_of(launch.key)](launch)
        self.replays += 1
        real = slice(0, launch.num_rows)
        here, there = found[real].cpu(), expected[real].cpu()
        text = difference(here, there, TOLERANCES[self.dtype])
        if text is not None:
            key = launch.key
            raise ConformanceError(
                f"replay {self.replays} of {key.kind} of {key.rows} rows, width {key.width}, with "
                f"{launch.num_rows} rows of {launch.seq_lens_host[real].tolist()} tokens differs from the eager run: "
                f"{text}",
                named(result=here, expected=there, tables=list(launch.block_tables), lengths=launch.seq_lens),
            )
        return found

    def invalidate(self) -> None:
        self.graphs.invalidate()


def _if_captured(target: Target, check: Callable[[TinyRun], None]) -> Verdict:
    if target.brings_a_runner:
        return absent("the platform has its own model runner")
    if not isinstance(target.platform.graph_runner(target.device), GraphRunner):
        return absent("the platform captures no launches")
    with TinyRun(target, target.exact_dtype, positions=256) as run:
        if not run.runner.keys:
            return absent("no launch of this model is captured")
        check(run)
    return PASSED


def _replay(run: TinyRun) -> None:
    """Requests start, grow and end, so that each replay of a shape has different rows, blocks and lengths."""
    compared = ComparedGraphs(run.runner.graphs, run.runner.model.facts.dtype)
    compared.invalidate()
    run.runner.graphs = compared
    run.runner.warm_up(silent)
    for number, lengths in enumerate(_CAPTURED):
        run.ask(prompts_of(lengths, seed=number), 4 + number)
    if not compared.replays:
        raise ConformanceError("no captured launch was replayed")


def _invalidate(run: TinyRun) -> None:
    """Moves caches and buffers to other addresses and captures again."""
    prompts = prompts_of(_CAPTURED[2])
    run.ask(prompts, 8)
    before = TinyAnswers.from_run(run)
    old = run.runner.caches, run.runner.buffers, run.runner.memory  # kept, so that their addresses are not reused
    run.scheduler.reset_prefix_cache()
    run.runner.graphs.invalidate()
    run.runner.allocate(run.started.plan)
    run.runner.warm_up(silent)
    try:
        run.ask(prompts, 8)
    except Exception as error:
        raise ConformanceError(f"launches captured again after invalidate() failed: {error}") from error
    compare_answers(
        "after invalidate() and a new capture",
        TinyAnswers.from_run(run, len(prompts)),
        before,
        run.runner.model.facts.dtype,
    )
    del old
