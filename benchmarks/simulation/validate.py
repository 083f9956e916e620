"""A trace served by a real engine and by its simulation, side by side.

The real engine's clock is the sum of what its steps took, and jumps to the next arrival when it has nothing to do. So
the two differ in nothing but the seconds of a step; the HTTP front end is in neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.models import Sizes
from benchmarks.simulation.devices import Device
from benchmarks.simulation.figures import SHARES
from benchmarks.simulation.fleet import Fleet, RequestRecord
from benchmarks.simulation.models import ModelCost
from benchmarks.simulation.replica import ReplicaKind
from benchmarks.simulation.timed_engine import TimedEngine, timed_engine
from benchmarks.simulation.traces import Contents, Piece, TracedRequest

FLAGS = {"max_model_len": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 2**29}
UNUSED = 2**62
"""A content that no trace has."""


@dataclass(frozen=True)
class Validation:
    """The same requests, as they were served and as they were simulated."""

    real: Sequence[RequestRecord]
    simulated: Sequence[RequestRecord]
    # By a device whose steps together take as long as the real ones: what is left is not the device's error.
    scaled: Sequence[RequestRecord]
    # Of the real steps, the seconds that were measured and those that the device says.
    step_seconds: Sequence[tuple[float, float]]
    # Of the simulation.
    num_steps: int


def validate(
    sizes: Sizes, device: Device, requests: Sequence[TracedRequest], seed: int, platform: str | None, timer: str
) -> Validation:
    """requests: without later turns, since a real engine answers what it likes."""
    model = ModelCost.from_sizes("validated", sizes)
    contents = Contents(seed, model.vocab_size)
    with timed_engine(sizes, timer, platform=platform, **FLAGS) as engine:
        _warm_up(engine, contents)
        real, steps = _served(engine, device, model, requests, contents)
        kind = ReplicaKind(device, model, engine.scheduler_config, engine.plan)
    run = Fleet(kind, 1).run(requests, contents)
    slowness = sum(measured for measured, _ in steps) / sum(said for _, said in steps)
    scaled = Fleet(kind, 1, num_slow=1, slowness=slowness).run(requests, contents)
    return Validation(real, run.records, scaled.records, steps, run.num_steps)


def _warm_up(engine: TimedEngine, contents: Contents) -> None:
    """Prompts that no other has."""
    prompt = contents.tokens([Piece(UNUSED, 700)])
    for number in (1, 2):
        engine.add(UNUSED + number, prompt[: 300 * number], 4)
    while engine.has_work:
        engine.step()


def _served(
    engine: TimedEngine, device: Device, model: ModelCost, requests: Sequence[TracedRequest], contents: Contents
) -> tuple[list[RequestRecord], list[tuple[float, float]]]:
    records = [RequestRecord(one.prompt_length, one.answer.length) for one in requests]
    waiting, now, steps = deque(range(len(requests))), 0.0, []
    while waiting or engine.has_work:
        if not engine.has_work:
            now = max(now, requests[waiting[0]].at)
        while waiting and requests[waiting[0]].at <= now:
            number = waiting.popleft()
            records[number].arrived_at = requests[number].at
            engine.add(number, contents.tokens(requests[number].pieces), requests[number].answer.length)
        work, seconds, outputs = engine.step()
        steps.append((seconds, device.seconds(model, work)))
        now += seconds
        for started in outputs.started:
            records[started.key].num_cached = started.num_cached_tokens
        for key in outputs.keys.tolist():
            if records[key].first_token_at < 0:
                records[key].first_token_at = now
        for finished in outputs.finished:
            records[finished.key].last_token_at, records[finished.key].outcome = now, finished.reason
    return records, steps


def lines(sides: Validation) -> Iterator[str]:
    """What to print."""
    measured, said = np.array(sides.step_seconds).T
    off = np.abs(said / measured - 1)
    yield (
        f"steps: {len(measured)} real, {sides.num_steps} simulated; the device is off by "
        f"{np.median(off):.0%} (median), "
        f"{np.percentile(off, 90):.0%} (90 of a hundred), {said.sum() / measured.sum() - 1:+.0%} in all"
    )
    yield f"{'':26} {'real':>9} {'simulated':>17} {'device scaled':>17}"
    for name, attribute in (("TTFT", "ttft"), ("TPOT", "tpot")):
        for share in SHARES:
            found = [
                1e3 * float(np.percentile([getattr(one, attribute) for one in records], share))
                for records in (sides.real, sides.simulated, sides.scaled)
            ]
            yield _row(f"{name} ms, {share} of a hundred", found)
    ends = [max(one.last_token_at for one in records) for records in (sides.real, sides.simulated, sides.scaled)]
    yield _row("seconds to the last token", ends)
    hits = [
        100 * sum(one.num_cached for one in records) / sum(one.prompt_length for one in records)
        for records in (sides.real, sides.simulated, sides.scaled)
    ]
    yield _row("% of prompt tokens cached", hits)


def _row(name: str, values: Sequence[float]) -> str:
    first, *others = values
    return f"{name:26} {first:9.1f}" + "".join(f" {other:9.1f} {other / first - 1:+7.0%}" for other in others)
