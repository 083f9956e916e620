"""The messages between WorkersExecutor and its workers: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any

import msgspec

from tessera.arrays import decoder, encoder
from tessera.config import EngineConfig
from tessera.platform.attention import CacheSpec, KVLayout
from tessera.platform.explain import Explained
from tessera.platform.model import ModelFacts
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import CacheNeeds, CachePlan, LoadedModel
from tessera.processes.error_message import ErrorMessage
from tessera.processes.frames import frame, read_frame
from tessera.step import SchedulerOutput, StepOutput, TokenMasks


class Start(msgspec.Struct, tag=True):
    """rendezvous: a URL in `folder`, where the workers meet. folder: exists as long as the executor does."""

    config: EngineConfig
    spec: WorkerSpec
    rendezvous: str
    folder: str = ""
    log_level: int = logging.INFO


class DescribeLayout(msgspec.Struct, tag=True):
    layer: int
    block_size: int


class Allocate(msgspec.Struct, tag=True):
    plan: CachePlan


class WarmUp(msgspec.Struct, tag=True):
    pass


class Execute(msgspec.Struct, tag=True):
    step: SchedulerOutput


class Sample(msgspec.Struct, tag=True):
    masks: TokenMasks | None = None


class Close(msgspec.Struct, tag=True):
    pass


Order = Start | DescribeLayout | Allocate | WarmUp | Execute | Sample | Close


class Needs(msgspec.Struct):
    """CacheNeeds as plain data, without layouts; DescribeLayout asks for those."""

    layer: int
    spec: CacheSpec
    block_sizes: tuple[int, ...]
    block_multiple: bool
    index_dtype: str
    align_bytes: int
    dense_planes: bool = False
    separate_planes: bool = False

    @classmethod
    def of(cls, needs: CacheNeeds) -> Needs:
        return cls(*(getattr(needs, name) for name in cls.__struct_fields__))


class Loaded(msgspec.Struct, tag=True):
    facts: ModelFacts
    needs: list[Needs]
    weight_bytes: int
    cache_bytes: int
    device: str
    fallbacks: tuple[str, ...]
    granted_bytes: int = 0
    workspace_bytes: int = 0
    columns: tuple[str, ...] = ()
    choices: tuple[Explained, ...] = ()
    num_weights: int = 0
    unsupported: tuple[str, ...] = ()
    linear_layers: dict[str, tuple[int, int]] = {}

    @classmethod
    def of(cls, loaded: LoadedModel) -> Loaded:
        needs = [Needs.of(needs) for needs in loaded.needs]
        return cls(
            loaded.facts,
            needs,
            loaded.weight_bytes,
            loaded.cache_bytes,
            loaded.device,
            loaded.fallbacks,
            loaded.granted_bytes,
            loaded.workspace_bytes,
            loaded.columns,
            loaded.choices,
            loaded.num_weights,
            loaded.unsupported,
            dict(loaded.linear_layers),
        )


class Under(msgspec.Struct, tag=True):
    """Progress of a long phase: done of total, in units of the phase."""

    phase: str
    done: int
    total: int


class Layout(msgspec.Struct, tag=True):
    layout: KVLayout


class Done(msgspec.Struct, tag=True):
    pass


class Stepped(msgspec.Struct, tag=True):
    output: StepOutput


class Failed(msgspec.Struct, tag=True):
    """What ended the worker."""

    # The exception's class and message, in one line.
    message: str
    # None for a bug, whose traceback is in the log.
    failure: ErrorMessage | None = None


Answer = Loaded | Under | Layout | Done | Stepped | Failed


class MessageStream:
    """Sends and receives whole messages over a stream socket. Several threads may send; only one may receive."""

    def __init__(self, link: socket.socket, incoming: Any) -> None:
        self._link = link
        self._encode = encoder().encode
        self._decode = decoder(incoming).decode
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        with self._sending:
            self._link.sendall(frame(self._encode(message)))

    def receive(self) -> Any:
        """Waits for the next message. Raises EOFError if the other side is gone."""
        return self._decode(read_frame(self._link.recv_into))

    def fileno(self) -> int:
        """Of the socket, for a selector."""
        return self._link.fileno()

    def close(self) -> None:
        self._link.close()
