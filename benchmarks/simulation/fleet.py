"""Replicas behind a router, event by event: requests arrive, steps end, replicas die and come back."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from benchmarks.simulation.replica import Clock, Replica, ReplicaKind
from benchmarks.simulation.routes import ROUTES
from benchmarks.simulation.traces import Contents, TracedRequest
from tessera.arrays import Array
from tessera.errors import QueueFullError, RequestError
from tessera.router.prompts import BLOCK_BYTES
from tessera.router.proxy import MAX_TRIES
from tessera.routing import hashed_blocks
from tessera.scheduler import EngineCoreOutputs

_ROOT = b"simulated"


@dataclass(frozen=True)
class Fault:
    """A replica dies and comes back with an empty cache."""

    replica: int
    # Seconds after the start.
    at: float
    # Until it serves again.
    seconds: float


@dataclass(slots=True)
class RequestRecord:
    """What became of one request; times in seconds after the start."""

    # In tokens.
    prompt_length: int
    # In tokens.
    answer_length: int
    # When it arrived at the router; negative before.
    arrived_at: float = -1.0
    first_token_at: float = -1.0
    last_token_at: float = -1.0
    # Of the prompt's tokens, those that the replica had in its cache.
    num_cached: int = 0
    # How often another replica took it over, because its own died or was full.
    num_moves: int = 0
    # "length" if it was answered, "refused" if no replica could hold it, "unanswered" if none took it, "broken" if its
    # replica died in the middle of the answer.
    outcome: str = ""

    @property
    def was_answered(self) -> bool:
        return self.outcome == "length"

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first_token_at - self.arrived_at

    @property
    def tpot(self) -> float:
        """Time per token after the first; 0 if there is only one."""
        return (self.last_token_at - self.first_token_at) / max(self.answer_length - 1, 1)


@dataclass(frozen=True)
class FleetRun:
    """What a simulation has shown."""

    # In the order of the trace.
    records: Sequence[RequestRecord]
    # Simulated seconds until the last answer.
    seconds: float
    # Steps of all replicas.
    num_steps: int
    num_preemptions: int
    # Fractions of the KV cache that requests held, on average and at most, over all steps.
    mean_usage: float
    max_usage: float
    # Real processor seconds of the router for each request: hashing its prompt, choosing, keeping the books.
    router_seconds: Sequence[float]
    # Real seconds that the simulation took.
    wall_seconds: float


class Fleet:
    """num_replicas of one kind, behind a policy of ROUTES."""

    def __init__(
        self,
        kind: ReplicaKind,
        num_replicas: int,
        route: str = "prefix",
        *,
        faults: Sequence[Fault] = (),
        num_slow: int = 0,
        slowness: float = 3.0,
    ) -> None:
        """num_slow: of the replicas, the first ones, whose steps take `slowness` times as long."""
        self._kind, self._clock = kind, Clock()
        self._slowness = [slowness if number < num_slow else 1.0 for number in range(num_replicas)]
        self._replicas = [Replica(kind, self._clock, slowness=one) for one in self._slowness]
        self._routing = ROUTES[route](kind.plan.num_tokens * 4 // BLOCK_BYTES)
        self._hashes = route == "prefix"
        for number in range(num_replicas):
            self._routing.add(number)
        # As bits.
        self._available = (1 << num_replicas) - 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        # Valid in run().
        self._requests: Sequence[TracedRequest]
        self._contents: Contents
        self._until: float
        self._records: list[RequestRecord]
        # By number of a request, those that come after its end.
        self._next_turns: dict[int, list[int]] = {}
        # By number of the request, its replica, while one has it.
        self._places: dict[int, int] = {}
        self._router_seconds: list[float] = []
        self._num_preemptions = self._num_steps = 0
        self._sum_usage = self._max_usage = 0.0
        for fault in faults:
            self._at(fault.at, partial(self._die, fault))

    def run(self, requests: Sequence[TracedRequest], contents: Contents, *, until: float = math.inf) -> FleetRun:
        """Serves a trace until every request has ended. until: seconds after which none arrives any more. Call it
        once."""
        self._requests, self._contents, self._until = requests, contents, until
        self._records = [RequestRecord(one.prompt_length, one.answer.length) for one in requests]
        for number, request in enumerate(requests):
            if request.after is None:
                self._arrive_at(request.at, number)
            else:
                self._next_turns.setdefault(request.after, []).append(number)
        began = time.perf_counter()
        while self._events:
            self._clock.now, _, action = heapq.heappop(self._events)
            action()
        took = time.perf_counter() - began
        for replica in self._replicas:
            self._num_preemptions += replica.scheduler.counters.preemptions
        return FleetRun(
            records=[record for record in self._records if record.outcome],
            seconds=max((record.last_token_at for record in self._records), default=0.0),
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            mean_usage=self._sum_usage / max(self._num_steps, 1),
            max_usage=self._max_usage,
            router_seconds=self._router_seconds,
            wall_seconds=took,
        )

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), action))

    def _arrive_at(self, seconds: float, number: int) -> None:
        if seconds <= self._until:
            self._at(seconds, partial(self._arrive, number))

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        self._records[number].arrived_at = self._clock.now
        self._route(number, self._available)

    def _route(self, number: int, available: int) -> None:
        """Gives a request to one of the available replicas, as the router does: the next one if the first is full."""
        request, record = self._requests[number], self._records[number]
        prompt, answer = self._contents.tokens(request.pieces), self._contents.tokens((request.answer,))
        began = time.thread_time()
        blocks = hashed_blocks(prompt.tobytes(), BLOCK_BYTES, _ROOT) if self._hashes else ()
        for _ in range(MAX_TRIES):
            chosen = self._routing.choose(blocks, available)
            if chosen is None:
                break
            self._routing.begin(chosen, blocks)
            self._router_seconds.append(time.thread_time() - began)
            if self._add(number, chosen, prompt, answer):
                return
            self._routing.finish(chosen)
            if record.outcome:
                return
            available &= ~(1 << chosen)
            record.num_moves += 1
            began = time.thread_time()
        record.outcome = "unanswered"

    def _add(self, number: int, chosen: int, prompt: Array, answer: Array) -> bool:
        """Whether the replica took the request."""
        replica = self._replicas[chosen]
        try:
            replica.add(number, prompt, answer)
        except QueueFullError:
            return False
        except RequestError:
            self._records[number].outcome = "refused"
            return False
        self._places[number] = chosen
        self._launch(chosen, replica)
        return True

    def _launch(self, number: int, replica: Replica) -> None:
        while (ends_at := replica.launch()) is not None:
            self._at(ends_at, partial(self._end_step, number, replica))

    def _end_step(self, number: int, replica: Replica) -> None:
        if self._replicas[number] is not replica:
            return  # it died in this step
        outputs = replica.retire()
        self._num_steps += 1
        usage = replica.scheduler.kv_usage
        self._sum_usage += usage
        self._max_usage = max(self._max_usage, usage)
        self._note(outputs)
        self._launch(number, replica)

    def _note(self, outputs: EngineCoreOutputs) -> None:
        now, records = self._clock.now, self._records
        for started in outputs.started:
            records[started.key].num_cached = started.num_cached_tokens
        for key in outputs.keys.tolist():
            if records[key].first_token_at < 0:
                records[key].first_token_at = now
        for finished in outputs.finished:
            record = records[finished.key]
            record.last_token_at, record.outcome = now, finished.reason
            self._routing.finish(self._places.pop(finished.key))
            for turn in self._next_turns.get(finished.key, ()):
                self._arrive_at(now + self._requests[turn].at, turn)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _die(self, fault: Fault) -> None:
        """What it had sent nothing of goes on elsewhere."""
        bit = 1 << fault.replica
        self._available &= ~bit
        self._num_preemptions += self._replicas[fault.replica].scheduler.counters.preemptions
        self._replicas[fault.replica] = Replica(self._kind, self._clock, slowness=self._slowness[fault.replica])
        self._at(self._clock.now + fault.seconds, partial(self._come_back, bit))
        for number in [one for one, place in self._places.items() if place == fault.replica]:
            del self._places[number]
            self._routing.finish(fault.replica)
            record = self._records[number]
            if record.first_token_at < 0:
                record.num_moves += 1
                self._route(number, self._available)
            else:
                record.outcome = "broken"

    def _come_back(self, bit: int) -> None:
        self._available |= bit
