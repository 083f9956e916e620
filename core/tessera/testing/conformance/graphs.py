"""Gold: what a captured launch gives is what it gives eagerly, whatever tables, lengths and rows have become; and
nothing captured outlives invalidate()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tessera.engine.engine import silent
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Buffers, Launch, LaunchKey, ShapePolicy
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.arguments import named
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.same_answers import Answers, compare_answers
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny_run import TinyRun, prompts_of

_BATCHES = ((9,), (3, 40), (70, 1, 9, 24, 33), (5, 6, 16, 17, 49, 130, 2, 8), (25, 1))  # lengths of prompts


def graph_cases(target: Target) -> Iterator[Case]:
    for name, check in (("replay", _replay), ("invalidate", _invalidate)):
        yield Case(f"graphs/{name}", "gold", "graph capture", partial(_if_captured, target, check))


@dataclass
class ComparedGraphs(GraphRunner):
    """Replays and runs the same launch eagerly after. Raises ConformanceError where rows differ."""

    graphs: GraphRunner
    dtype: str
    replays: int = 0
    eager: dict[LaunchKey, Callable[[Launch], Any]] = field(default_factory=dict)

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
                f"{launch.num_rows} rows of {launch.seq_lens_host[real].tolist()} tokens is not what it gives eagerly: "
                f"{text}",
                named(result=here, expected=there, tables=list(launch.block_tables), lengths=launch.seq_lens),
            )
        return found

    def after_launch(self, executable: Any, launch: Launch) -> None:
        self.graphs.after_launch(executable, launch)

    def invalidate(self) -> None:
        self.graphs.invalidate()


def _if_captured(target: Target, check: Callable[[TinyRun], None]) -> Verdict:
    if target.brings_a_runner:
        return absent("it brings a runner of its own")
    if target.platform.graph_runner(target.device) is None:
        return absent("it captures no launches")
    with TinyRun(target, target.exact_dtype, positions=256) as run:
        if not run.runner.keys:
            return absent("it captures nothing of this model")
        check(run)
    return PASSED


def _replay(run: TinyRun) -> None:
    """Batches that come, grow and go, so that rows, blocks and lengths of each shape are others each time."""
    compared = ComparedGraphs(run.runner.graphs, run.runner.model.facts.dtype)
    compared.invalidate()
    run.runner.graphs = compared
    run.runner.warm_up(silent)
    for number, lengths in enumerate(_BATCHES):
        run.ask(prompts_of(lengths, seed=number), 4 + number)
    if not compared.replays:
        raise ConformanceError("none of the launches was one that was captured")


def _invalidate(run: TinyRun) -> None:
    """Caches and buffers elsewhere, and captured anew."""
    prompts = prompts_of(_BATCHES[2])
    run.ask(prompts, 8)
    before = Answers.of(run)
    old = run.runner.caches, run.runner.buffers, run.runner.memory  # held, so that nothing new lies at their addresses
    run.scheduler.reset_prefix_cache()
    run.runner.graphs.invalidate()
    run.runner.allocate(run.started.plan)
    run.runner.warm_up(silent)
    try:
        run.ask(prompts, 8)
    except Exception as error:
        raise ConformanceError(f"after invalidate(), launches that were captured anew: {error}") from error
    compare_answers(
        "after invalidate() and a new capture", Answers.of(run, len(prompts)), before, run.runner.model.facts.dtype
    )
    del old
