"""The messages between the front end's process and the engine's: versioned plain data, with a closed union for each
direction.

Every message carries the epoch of its engine; messages of another epoch are dropped. Add new fields at the end, with a
default; change VERSION when the meaning of a field changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import BufferedReader
from typing import TypeVar

import msgspec
import numpy as np

from tessera.arrays import Array, decoder, encoder, int32
from tessera.config import CacheConfig, EngineConfig, SchedulerConfig
from tessera.engine.summary import ModelSummary
from tessera.platform.feature import FeatureCounter
from tessera.processes.error_message import ErrorMessage
from tessera.processes.frames import frame, read_frame
from tessera.request import Request
from tessera.sampling_params import SamplingParams, changed
from tessera.scheduler.outputs import EngineCoreOutputs, SchedulerCounters

log = logging.getLogger(__name__)
VERSION = 3
MAX_CONFIG_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 2**30
"""The largest message that either side receives; a larger one closes the connection (ZMQ_MAXMSGSIZE)."""


# ---- to the engine ----------------------------------------------------------


class StartUp(msgspec.Struct, frozen=True):
    """The first message, sent as JSON on standard input."""

    config: EngineConfig
    # Dotted path.
    executor: str
    # Of this engine; all of its messages have it.
    epoch: int
    # Addresses of the two sockets: the engine receives on the first and sends on the second.
    requests: str
    answers: str
    # A level of the standard library's logging.
    log_level: int = logging.INFO
    version: int = VERSION


def read_start(pipe: BufferedReader) -> StartUp | None:
    """Reads the JSON from standard input. Returns None if it is closed without any data. Raises ValueError for anything
    else."""
    if not pipe.peek(1):
        return None
    try:
        data = read_frame(pipe.readinto, MAX_CONFIG_BYTES)
    except EOFError:
        raise ValueError("standard input ended before the configuration") from None
    start = msgspec.json.decode(data, type=StartUp)
    if start.version != VERSION:
        raise ValueError(f"this engine uses message version {VERSION}, but its parent uses {start.version}")
    return start


def pack_start(start: StartUp) -> bytes:
    """Encodes a StartUp as read_start() reads it."""
    return frame(msgspec.json.encode(start))


class AddRequests(msgspec.Struct, tag=True, array_like=True):
    """On the way, only the first of several requests with one leader has the prompt, its media and the parameters."""

    requests: list[Request]
    # They come from an engine that died, and are queued even if the waiting queue is full.
    replayed: bool = False


class AbortRequests(msgspec.Struct, tag=True, array_like=True):
    keys: list[int]


class Shutdown(msgspec.Struct, tag=True, array_like=True):
    """Tells the engine to shut down; requests that are still running are dropped."""


class ToEngine(msgspec.Struct, array_like=True):
    version: int
    epoch: int
    body: AddRequests | AbortRequests | Shutdown


# ---- from the engine --------------------------------------------------------


class EngineInfo(ModelSummary, frozen=True, kw_only=True):
    """What an engine runs on."""

    # Seconds that each phase of the start took.
    phases: dict[str, float]
    pid: int
    # Of the first paged cache group, in tokens and in blocks; 0 if there is none.
    block_size: int = 0
    num_blocks: int = 0
    # As the engine uses it; prefix_caching is off where the model's cache cannot be reused.
    cache: CacheConfig = CacheConfig()
    # Requests that run at once: as configured, or the platform's default.
    max_num_seqs: int = SchedulerConfig.max_num_seqs


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """The state of the scheduler."""

    num_running: int = 0
    num_waiting: int = 0
    # Fraction of the blocks in use, 0 to 1.
    kv_usage: float = 0.0
    counters: SchedulerCounters = msgspec.field(default_factory=SchedulerCounters)
    # How often each op's reference implementation ran.
    fallbacks: dict[str, int] = {}
    # Kernels that were compiled since the engine was ready.
    compilations: int = 0
    # What features count, in the order of --features.
    feature_counters: list[FeatureCounter] = []
    # Of the waiting requests, those that a feature does not let start yet.
    num_deferred: int = 0


class Starting(msgspec.Struct, tag=True, array_like=True):
    """Progress of the start: done of total, in units of the phase."""

    phase: str
    done: int
    total: int


class EngineReady(msgspec.Struct, tag=True, array_like=True):
    info: EngineInfo


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """A request that the engine refused."""

    key: int
    failure: ErrorMessage


class Report(msgspec.Struct, tag=True, array_like=True):
    """The outputs of a step. An idle engine sends one per second, without outputs, as a heartbeat."""

    stats: EngineStats
    outputs: EngineCoreOutputs | None = None
    refused: list[Refused] = []


class Alive(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sent by a thread of its own, so also during a long step."""

    # How long the current step has run; 0 between steps.
    seconds: float = 0.0
    # Seconds, up to now, in which the step has used no processor time.
    idle: float = 0.0


Answer = Starting | EngineReady | ErrorMessage | Report | Alive


class FromEngine(msgspec.Struct, array_like=True):
    version: int
    epoch: int
    body: Answer


# ---- bytes ------------------------------------------------------------------

M = TypeVar("M", ToEngine, FromEngine)


class Codec:
    """Packs messages of one epoch, and unpacks messages of the same epoch and version."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._encoder = encoder()
        self._to_engine = decoder(ToEngine)
        self._from_engine = decoder(FromEngine)

    def pack_request(self, body: AddRequests | AbortRequests | Shutdown) -> bytes:
        if isinstance(body, AddRequests) and len(body.requests) > 1:
            body = AddRequests(list(_slim(body.requests)), body.replayed)
        return self._encoder.encode(ToEngine(VERSION, self.epoch, body))

    def pack_answer(self, body: Answer) -> bytes:
        return self._encoder.encode(FromEngine(VERSION, self.epoch, body))

    def unpack_request(self, data: bytes) -> AddRequests | AbortRequests | Shutdown | None:
        """The message; None, with a warning in the log, if it is malformed or of another version or epoch."""
        message = self._unpack(self._to_engine, data)
        if message is None:
            return None
        if not isinstance(message.body, AddRequests):
            return message.body
        message.body.requests = list(_whole(message.body.requests))
        if not all(map(_well_formed, message.body.requests)):
            log.warning(
                "dropped a message with a prompt that is no array [tokens] of int32 token ids, or media beyond it"
            )
            return None
        return message.body

    def unpack_answer(self, data: bytes) -> Answer | None:
        """The message; None, with a warning in the log, if it is malformed or of another version or epoch."""
        message = self._unpack(self._from_engine, data)
        if message is None:
            return None
        if isinstance(message.body, Report) and not _adds_up(message.body.outputs):
            log.warning("dropped a report whose counts and tokens do not agree")
            return None
        return message.body

    def _unpack(self, decode: msgspec.msgpack.Decoder[M], data: bytes) -> M | None:
        try:
            message = decode.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            log.warning("dropped a malformed message of %d bytes (%s)", len(data), type(error).__name__)
            return None
        if (message.version, message.epoch) != (VERSION, self.epoch):
            log.warning("dropped a message of version %d, epoch %d", message.version, message.epoch)
            return None
        return message


def _slim(requests: list[Request]) -> Iterator[Request]:
    families: set[int] = set()
    for request in requests:
        family = _family(request)
        if family in families:
            yield msgspec.structs.replace(request, prompt=int32(()), params=SamplingParams(), media=())
        else:
            families.add(family)
            yield request


def _family(request: Request) -> int:
    """The key of the sibling that leads; of the request itself if it has none."""
    return request.key if request.leader < 0 else request.leader


def _whole(requests: list[Request]) -> Iterator[Request]:
    """The requests that _slim() was given. Siblings share one prompt and one params in memory too."""
    firsts: dict[int, Request] = {}
    for request in requests:
        family = _family(request)
        first = firsts.get(family)
        if first is None or request.prompt.size:
            others = request.params
            if others.prompt_logprobs is not None:  # only the first computes them
                others = changed(others, prompt_logprobs=None)
            firsts[family] = msgspec.structs.replace(request, params=others)
            yield request
        else:
            yield msgspec.structs.replace(request, prompt=first.prompt, params=first.params, media=first.media)


def _adds_up(outputs: EngineCoreOutputs | None) -> bool:
    if outputs is None:
        return True
    keys, counts, tokens = outputs.keys, outputs.counts, outputs.tokens
    whole = all(array.ndim == 1 and array.dtype.kind == "i" for array in (keys, counts, tokens))
    return whole and len(keys) == len(counts) and int(counts.sum()) == len(tokens) and int(counts.min(initial=0)) >= 0


def _well_formed(request: Request) -> bool:
    prompt = request.prompt
    wants = request.max_tokens > 0 or request.pooling is not None
    placed = all(
        media.length > 0 if not media.places.size else _within(media.places, prompt.size) and not media.length
        for media in request.media
    )
    return prompt.dtype == np.int32 and prompt.ndim == 1 and prompt.size > 0 and wants and placed


def _within(places: Array, size: int) -> bool:
    """Whether they are ascending positions of a prompt of this size, at least one."""
    whole = places.dtype == np.int32 and places.ndim == 1 and places.size > 0
    return whole and bool(places[0] >= 0 and places[-1] < size and (np.diff(places) > 0).all())
