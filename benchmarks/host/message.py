"""Measures the cost of a step's message: the engine packs the outputs of the requests, sends them, and the front end
unpacks them."""

from __future__ import annotations

import tempfile
import time

import numpy as np
import zmq

from tessera.arrays import int32
from tessera.engine.messages import Codec, EngineStats, Report
from tessera.scheduler.outputs import EngineCoreOutputs

EPOCH = 1


def report_of(requests: int) -> Report:
    """A report of a step in which each request sampled one token."""
    chance = np.random.default_rng(0)
    keys = np.arange(10**6, 10**6 + requests, dtype=np.int64)
    outputs = EngineCoreOutputs(keys, np.ones(requests, np.int32), int32(chance.integers(0, 32_000, requests)))
    return Report(EngineStats(requests, 0, 0.5), outputs)


def measure(requests: int, times: int) -> float:
    """Microseconds of the median message: packed, sent through a socket as between the two processes, unpacked."""
    report, engine, front = report_of(requests), Codec(EPOCH), Codec(EPOCH)
    took = []
    with (
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as context,
        context.socket(zmq.PULL) as pull,
        context.socket(zmq.PUSH) as push,
    ):
        pull.bind(f"ipc://{folder}/answers")
        push.connect(f"ipc://{folder}/answers")
        for _ in range(times):
            began = time.perf_counter()
            push.send(engine.pack_answer(report))
            answer = front.unpack_answer(pull.recv())
            took.append(time.perf_counter() - began)
            assert isinstance(answer, Report), "it arrived as it was sent"
    return float(np.median(took)) * 1e6
