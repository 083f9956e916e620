"""The messages between WorkersExecutor and its workers: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, get_origin

import msgspec

from tessera.arrays import decode_array, encode_array
from tessera.config import EngineConfig
from tessera.platform.attention import KVLayout
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import CachePlan
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


class Loaded(msgspec.Struct, tag=True):
    # Its layouts stay in the worker; DescribeLayout asks for those.
    model: LoadedModel


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


def encoder() -> msgspec.msgpack.Encoder:
    def encode(value: Any) -> Any:
        return None if callable(value) else encode_array(value)  # a layout, as only CacheNeeds has functions

    return msgspec.msgpack.Encoder(enc_hook=encode)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    def decode(kind: Any, value: Any) -> Any:
        return _ask_the_worker if get_origin(kind) is Callable else decode_array(kind, value)

    return msgspec.msgpack.Decoder(kind, dec_hook=decode)


def _ask_the_worker(block_size: int) -> KVLayout:
    raise AssertionError("a layout stays in its worker: send DescribeLayout")


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
