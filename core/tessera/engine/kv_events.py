"""Publishes an engine's KV events over ZMQ, with vLLM's messages: a PUB socket sends batches, each with a number, and a
ROUTER socket sends again what a subscriber missed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import zmq

from tessera.config.kv_events import FLAG, KVEventsConfig
from tessera.errors import ConfigError
from tessera.kvcache.events import AllBlocksCleared, KVEvent, ObservedPrefixCache
from tessera.lora import NAME as LORA
from tessera.platform.runner import CacheGroup
from tessera.request import NO_ARGS

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.001
"""Events of so much time are sent together."""
_SEQUENCE_BYTES = 8
_END_OF_REPLAY = (-1).to_bytes(_SEQUENCE_BYTES, "big", signed=True)
_LINGER_MILLISECONDS = 1000
_BOUND = ("*", "::", "ipc://", "inproc://")


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What subscribers get of one moment."""

    # Seconds since 1970.
    ts: float
    events: list[KVEvent]
    data_parallel_rank: int


class KVEventPublisher:
    """Sends events from a thread of its own, so that a step waits for nobody."""

    def __init__(self, config: KVEventsConfig, *, adapter_names: Mapping[str, str] = NO_ARGS, rank: int = 0) -> None:
        """adapter_names: by folder. rank: of the engine among data-parallel ones. Raises ConfigError for an address
        that cannot be had."""
        config = config.of_rank(rank)
        self._adapter_names = adapter_names
        self._topic, self._rank, self._most_waiting = config.topic.encode(), rank, config.max_queue_size
        # Batches that were sent, with their numbers.
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self._sequence = 0
        # Guards the next two, which the engine's thread fills.
        self._lock = threading.Lock()
        self._waiting: list[KVEvent] = []
        self._num_dropped = 0
        self._ending = False
        self._context = zmq.Context(io_threads=1)
        try:
            self._events = self._open(zmq.PUB, config.endpoint, config.hwm)
            self._replays = None
            if config.replay_endpoint is not None:
                self._replays = self._open(zmq.ROUTER, config.replay_endpoint, config.hwm)
            self._news, self._wake = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
            self._news.bind("inproc://news")
            self._wake.connect("inproc://news")
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        # Whoever knew an engine that was here before knows now that its blocks are gone.
        self.emit(AllBlocksCleared())
        self._thread.start()

    def observed_cache(self, groups: Sequence[CacheGroup], salt: bytes | None) -> ObservedPrefixCache:
        """A prefix cache whose events are published."""
        return ObservedPrefixCache(groups, salt, emit=self.emit, adapter_name=self._adapter_name)

    def _adapter_name(self, feature_args: Mapping[str, str]) -> str | None:
        folder = feature_args.get(LORA)
        return None if folder is None else self._adapter_names.get(folder, Path(folder).name)

    def emit(self, event: KVEvent) -> None:
        """Never waits. If too many events wait already, it is dropped, and a number is left out, so that subscribers
        know."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                self._num_dropped += 1
                return
            self._waiting.append(event)
            first = len(self._waiting) == 1
        if first:
            self._wake.send(b"")

    def close(self) -> None:
        """Sends what waits, for up to a second."""
        self._ending = True
        self._wake.send(b"")
        self._thread.join()
        self._context.destroy(linger=_LINGER_MILLISECONDS)

    def _open(self, kind: int, endpoint: str, high_water_mark: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water_mark)
        socket.maxmsgsize = 2**16  # of what subscribers send
        try:
            if any(part in endpoint for part in _BOUND):
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{FLAG}: '{endpoint}' cannot be used ({error.strerror}); choose another endpoint.", param=FLAG
            ) from error
        return socket

    # ---- on its own thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._news, self._replays):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._news in ready:
                self._news.recv()
                if not self._ending:
                    time.sleep(BATCH_SECONDS)
                self._publish()
                if self._ending:
                    return
            if self._replays is not None and self._replays in ready:
                self._replay(self._replays)

    def _publish(self) -> None:
        with self._lock:
            events, self._waiting = self._waiting, []
            dropped, self._num_dropped = self._num_dropped, 0
        if not events:
            return
        payload = self._encoder.encode(EventBatch(time.time(), events, self._rank))
        number = self._sequence.to_bytes(_SEQUENCE_BYTES, "big")
        self._sent.append((number, payload))
        self._events.send_multipart((self._topic, number, payload))
        self._sequence += 1
        if dropped:
            self._sequence += 1
            log.warning("dropped %d KV events, because more than %d waited", dropped, self._most_waiting)

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        """Answers one request: a client's id, an empty frame, and the number of the first batch that it wants."""
        client, *request = socket.recv_multipart()
        if len(request) != 2 or len(request[1]) != _SEQUENCE_BYTES:
            log.warning("dropped a malformed request for KV events")
            return
        first = request[1]
        for number, payload in self._sent:
            if number >= first:
                socket.send_multipart((client, b"", self._topic, number, payload))
        socket.send_multipart((client, b"", b"", _END_OF_REPLAY, b""))
