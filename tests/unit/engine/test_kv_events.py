"""Subscribers that know vLLM's published schema, and nothing of ours, know which blocks an engine can share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from tessera.arrays import int32
from tessera.config.kv_events import KVEventsConfig
from tessera.engine.kv_events import KVEventPublisher
from tessera.errors import ConfigError
from tessera.kvcache.events import AllBlocksCleared, ObservedPrefixCache
from tessera.kvcache.prefix_cache import SpanContent
from tessera.lora import lora_args
from tessera.platform import CacheGroup
from tessera.request import make_cache_key
from tests.unit.scheduler.world import World, paged, plan, state, window

# ---- what a consumer of vLLM's events has ----------------------------------------------------------------------------


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class Cleared(KVCacheEvent, tag="AllBlocksCleared"):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | Cleared]


class Subscriber:
    """Follows one engine, and asks for what it missed."""

    def __init__(self, config: KVEventsConfig) -> None:
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.connect(config.endpoint.replace("*", "127.0.0.1"))
        self.sub.subscribe(config.topic)
        self.replay_socket = self.context.socket(zmq.DEALER)
        self.replay_socket.connect(str(config.replay_endpoint))
        self.decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self.topic = config.topic.encode()
        self.last = -1
        self.num_replayed = 0
        self.batches: list[KVEventBatch] = []
        # By group: the parent and the tokens of each block.
        self.blocks: dict[int | None, dict[int | bytes, tuple[Any, tuple[int, ...]]]] = {}

    def close(self) -> None:
        self.context.destroy(linger=0)

    def receive(self, *, lose: int = 0) -> None:
        """All that has arrived, but for the last `lose` messages."""
        messages = []
        while self.sub.poll(50):
            messages.append(self.sub.recv_multipart())
        for topic, number, payload in messages[: len(messages) - lose]:
            assert topic == self.topic
            if int.from_bytes(number, "big") > self.last + 1:
                self.replay()
            self.take(number, payload)

    def replay(self) -> None:
        self.replay_socket.send_multipart((b"", (self.last + 1).to_bytes(8, "big")))
        while True:
            assert self.replay_socket.poll(5000), "no answer"
            empty, topic, number, payload = self.replay_socket.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                assert payload == topic == b""
                return
            assert topic == self.topic
            self.num_replayed += 1
            self.take(number, payload)

    def take(self, number: bytes, payload: bytes) -> None:
        sequence = int.from_bytes(number, "big")
        if sequence <= self.last:
            return
        self.last = sequence
        batch = self.decoder.decode(payload)
        self.batches.append(batch)
        for event in batch.events:
            match event:
                case BlockStored():
                    self.store(event)
                case BlockRemoved():
                    for one in event.block_hashes:
                        del self.blocks[event.group_idx][one]
                case Cleared():
                    self.blocks.clear()

    def store(self, event: BlockStored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == size * len(event.block_hashes)
        known = self.blocks.setdefault(event.group_idx, {})
        for place, one in enumerate(event.block_hashes):
            assert one not in known, "stored twice"
            known[one] = parent, tuple(event.token_ids[place * size : (place + 1) * size])
            parent = one


@pytest.fixture
def config() -> Iterator[KVEventsConfig]:
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        yield KVEventsConfig(f"ipc://{folder}/events", f"ipc://{folder}/replay", topic="kv@here@model")


@pytest.fixture
def publisher(config: KVEventsConfig) -> Iterator[KVEventPublisher]:
    publisher = KVEventPublisher(config)
    yield publisher
    publisher.close()


@pytest.fixture
def subscriber(config: KVEventsConfig, publisher: KVEventPublisher) -> Iterator[Subscriber]:
    subscriber = Subscriber(config)
    yield subscriber
    subscriber.close()


def until_equal(subscriber: Subscriber, cache: ObservedPrefixCache, groups: list[int]) -> bool:
    for _ in range(100):
        subscriber.receive()
        subscriber.replay()
        if all(set(subscriber.blocks.get(group, {})) == cache.block_hashes(group) for group in groups):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("groups", "matchable"),
    [
        ((paged(4, 40),), [0]),
        ((paged(4, 40), window(9, 6, 30)), [0, 1]),
        ((paged(8, 30), state(8, 3)), [0]),
    ],
    ids=["one group", "a window, units of 12", "states"],
)
def test_a_subscriber_knows_what_the_engine_has_cached(config, publisher, subscriber, groups, matchable):
    """After 500 requests that share prefixes, salts and prompts, are aborted, preempted and evicted."""
    rng = np.random.default_rng(7)
    made = []

    def observed(specs, salt):
        made.append(publisher.observed_cache(specs, salt))
        return made[-1]

    world = World(plan(*groups, max_model_len=96), depth=2, make_prefix_cache=observed)
    world.check = lambda: None  # of the scheduler's books, which other tests read
    openings = [rng.integers(0, 50, 48).tolist() for _ in range(6)]
    waiting: list[int] = []
    forks = not any(group.kind == "state" for group in groups)
    for number in range(500):
        opening = openings[int(rng.integers(len(openings)))][: int(rng.integers(0, 48))]
        prompt = [*opening, *rng.integers(0, 50, int(rng.integers(1, 24))).tolist()]
        leader = world.add(prompt, int(rng.integers(1, 16)), salt=("", "", "a", "b")[int(rng.integers(4))])
        waiting.append(leader)
        if forks and number % 9 == 0:
            waiting.append(world.add(prompt, 6, leader=leader))
        if number % 11 == 0:
            world.scheduler.abort([waiting[int(rng.integers(len(waiting)))]])
        while world.scheduler.num_waiting > 6:
            step = world.schedule()
            if world.outputs and (step is None or len(world.outputs) >= world.depth):
                world.update()
        if number == 250:
            world.scheduler.reset_prefix_cache()
    for finished in world.scheduler.take_finished():
        world.end(finished)
    world.run()
    (cache,) = made
    assert sum(len(cache.block_hashes(group)) for group in matchable) > 20
    assert until_equal(subscriber, cache, matchable)
    assert set(subscriber.blocks) == set(matchable)
    events = [event for batch in subscriber.batches for event in batch.events]
    assert sum(isinstance(event, BlockRemoved) for event in events) > 100, "too little was evicted"
    assert sum(isinstance(event, Cleared) for event in events) == 2, "at the start, and when it was asked for"
    for event in events:
        if isinstance(event, BlockStored):
            group = groups[event.group_idx]
            kind = "full_attention" if group.kind == "paged" else "sliding_window"
            assert (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) == (kind, group.window)
            assert (event.block_size, event.medium, event.lora_name) == (group.block_size, None, None)
    assert all(batch.data_parallel_rank == 0 for batch in subscriber.batches)


def test_what_was_missed_is_sent_again(config, publisher, subscriber):
    cache = publisher.observed_cache([CacheGroup((0,), "paged", 4, 1, 64)], None)
    tokens = int32(range(40))
    chain = cache.chain()
    while not subscriber.sub.poll(50):  # until it is connected: what it misses before that is sent again at once
        publisher.emit(AllBlocksCleared())
    subscriber.receive()
    for unit in range(6):
        cache.register(chain, tokens, unit, unit + 1, {0: [unit + 1]})
        time.sleep(0.02)  # a batch of its own
    subscriber.receive(lose=3)
    before = len(subscriber.blocks.get(0, {}))
    assert before < 6
    cache.register(chain, tokens, 6, 7, {0: [9]})
    subscriber.receive()
    assert subscriber.num_replayed >= 3
    assert set(subscriber.blocks[0]) == cache.block_hashes(0)
    assert len(subscriber.blocks[0]) == 7


def test_what_no_longer_waits_to_be_asked_for_again_is_a_gap(config, subscriber):
    small = KVEventsConfig(config.endpoint + "2", config.replay_endpoint + "2", buffer_steps=2, topic=config.topic)
    publisher, late = KVEventPublisher(small), Subscriber(small)
    try:
        for _ in range(5):
            publisher.emit(AllBlocksCleared())
            time.sleep(0.02)
        late.replay()
        assert late.num_replayed == 2
        assert late.last >= 3
    finally:
        late.close()
        publisher.close()


def test_events_that_are_dropped_leave_a_gap_in_the_numbers(config):
    publisher = KVEventPublisher(KVEventsConfig(config.endpoint, config.replay_endpoint, max_queue_size=3))
    subscriber = Subscriber(KVEventsConfig(config.endpoint, config.replay_endpoint))
    try:
        for _ in range(50):
            publisher.emit(AllBlocksCleared())
        time.sleep(0.1)
        publisher.emit(AllBlocksCleared())
        time.sleep(0.1)
        subscriber.replay()
        assert sum(len(batch.events) for batch in subscriber.batches) < 50
        assert subscriber.last > len(subscriber.batches) - 1
    finally:
        subscriber.close()
        publisher.close()


def test_malformed_requests_get_no_answer_and_end_nothing(config, publisher, subscriber):
    for message in ((b"",), (b"", b"1"), (b"", b"x" * 8, b"more"), (b"x" * 2**17,)):
        stranger = subscriber.context.socket(zmq.DEALER)
        stranger.connect(config.replay_endpoint)
        stranger.send_multipart(message)
        assert not stranger.poll(20)
        stranger.close(linger=0)
    subscriber.replay()
    assert subscriber.last == 0


def test_an_endpoint_in_use_is_one_line():
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(ConfigError, match=f"'tcp://\\*:{port}' cannot be used .* choose another endpoint") as error:
            KVEventPublisher(KVEventsConfig(f"tcp://*:{port}"))
    assert "\n" not in error.value.message


def test_extra_keys_say_what_a_block_holds_beside_tokens():
    events: list[Any] = []
    folder = "/adapters/french"

    def name(feature_args):
        return Path(feature_args["lora"]).name if feature_args else None

    cache = ObservedPrefixCache([CacheGroup((0,), "paged", 4, 1, 64)], emit=events.append, adapter_name=name)
    tokens, contents = int32(range(12)), (SpanContent(5, 9, b"\x01\x02"),)
    salted = make_cache_key("secret", lora_args(folder))
    for number, (key, args, spans) in enumerate(
        [
            (b"", {}, ()),
            (make_cache_key("", lora_args(folder)), lora_args(folder), ()),
            (salted, lora_args(folder), contents),
        ]
    ):
        blocks = [3 * number + place for place in (1, 2, 3)]
        cache.register(cache.chain(key, spans, args), tokens, 0, 3, {0: blocks})
    plain, adapted, all_of_it = events
    assert (plain.lora_name, plain.extra_keys) == (None, [None, None, None])
    assert (adapted.lora_name, adapted.extra_keys) == ("french", [["french"]] * 3)
    digest = salted.hex()
    assert all_of_it.extra_keys == [["french", digest], ["french", ("0102", 1)], ["french", ("0102", -3)]]
    assert "secret" not in repr(all_of_it)
    assert len({one for event in events for one in event.block_hashes}) == 9
    assert plain.parent_block_hash is None


def test_only_what_is_new_is_stored_in_runs_without_gaps():
    events: list[Any] = []
    groups = [CacheGroup((0,), "paged", 4, 1, 64), CacheGroup((1,), "window", 8, 1, 64, 9)]
    cache = ObservedPrefixCache(groups, emit=events.append, adapter_name=lambda _: None)
    tokens, chain = int32(range(32)), cache.chain()
    cache.register(chain, tokens, 0, 1, {0: [1, 2], 1: [1]})
    cache.register(chain, tokens, 2, 3, {0: [5, 6]})
    events.clear()
    cache.register(cache.chain(), tokens, 0, 4, {0: [11, 12, 13, 14, 15, 16, 17, 18], 1: [0, 7, 0, 8]})
    first, last = (event for event in events if event.group_idx == 0)
    assert first.token_ids == list(range(8, 16))
    assert last.token_ids == list(range(24, 32))
    second, fourth = (event for event in events if event.group_idx == 1)
    assert (second.token_ids, fourth.token_ids) == (list(range(8, 16)), list(range(24, 32)))
    assert first.parent_block_hash is not None
    assert len({*first.block_hashes, *last.block_hashes}) == 4
    cache.forget(0, [11, 13])
    assert events[-1].block_hashes == first.block_hashes[:1]
