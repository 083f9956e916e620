"""What crosses the process: whole there and back, and whatever else arrives is dropped."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tessera import errors
from tessera.arrays import int32
from tessera.engine import messages, process
from tessera.engine.messages import AddRequests, Codec, EngineStats, Refused, Report, StartUp
from tessera.processes.error_message import ErrorMessage
from tessera.request import Request
from tessera.sampling_params import SamplingParams, changed
from tessera.scheduler.outputs import (
    EngineCoreOutputs,
    FinishedRequest,
    RequestLogprobs,
    RequestPromptLogprobs,
    StartedRequest,
)
from tessera.step import PromptLogprobs, RowLogprobs
from tests.engine import fakes

REQUEST = Request(
    key=7,
    request_id="r",
    prompt=int32([1, 2, 3]),
    params=SamplingParams(stop=["a"], logprobs=2),
    max_tokens=5,
    seed=2**64 - 1,
    arrival=1.5,
    priority=-3,
    cache_key=b"s" * 32,
    leader=6,
    feature_args={"lora": "/a"},
    columns={"scale": 2.0},
)
PROGRESSED = EngineCoreOutputs(
    keys=np.array([2**40], dtype=np.int64),
    counts=int32([2]),
    tokens=int32([5, 6]),
    finished=[FinishedRequest(2**40, "stop", 6)],
    logprobs=[RequestLogprobs(2**40, RowLogprobs(0, int32([[5, 1]]), np.float32([[-1, -2]]), int32([1])))],
    started=[StartedRequest(2**40, 3, 1.25)],
    prompt_logprobs=[
        RequestPromptLogprobs(2**40, PromptLogprobs(0, 1, int32([[7, 1]]), np.float32([[-3, -1]]), int32([4])))
    ],
)


CODEC = Codec(1)


def same(a, b):
    """Structs with arrays in them."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_requests_come_through_whole():
    codec = Codec(3)
    body = AddRequests([REQUEST])
    assert same(codec.unpack_request(codec.pack_request(body)), body)


def test_a_steps_report_comes_through_whole():
    codec = Codec(3)
    body = Report(
        EngineStats(1, 2, 0.5), PROGRESSED, [Refused(9, ErrorMessage("OverloadedError", "Too many.", None, None))]
    )
    assert same(codec.unpack_answer(codec.pack_answer(body)), body)


def test_the_configuration_comes_through_whole(tmp_path):
    start = StartUp(fakes.config("words"), "a:b", 4, "ipc://r", "ipc://a")
    path = tmp_path / "pipe"
    path.write_bytes(messages.pack_start(start))
    with path.open("rb") as pipe:
        assert messages.read_start(pipe) == start


def test_no_start_at_all_is_none(tmp_path):
    path = tmp_path / "pipe"
    path.write_bytes(b"")
    with path.open("rb") as pipe:
        assert messages.read_start(pipe) is None


@pytest.mark.parametrize("data", [b"1234567", b"\xff" * 8, b"\0" * 8, b"\0\0\0\0\0\0\0\x02{}"])
def test_another_start_is_refused(tmp_path, data):
    path = tmp_path / "pipe"
    path.write_bytes(data)
    with path.open("rb") as pipe, pytest.raises(ValueError, match=r"ended|too long|missing|truncated"):
        messages.read_start(pipe)


def test_errors_keep_their_class_line_and_code():
    for error in (
        errors.ModelError("No model."),
        errors.RequestError("Too long.", param="prompt", code="context_length_exceeded"),
    ):
        back = ErrorMessage.from_error(error).error()
        assert (type(back), back.message, back.param, back.code) == (
            type(error),
            error.message,
            error.param,
            error.code,
        )


@pytest.mark.parametrize("kind", ["SystemExit", "EXIT_CODES", "ClassVar", "no such", ""])
def test_a_name_that_is_no_error_of_ours_is_a_dead_engine(kind):
    assert type(ErrorMessage(kind, "line").error()) is errors.EngineDeadError


def test_siblings_share_one_prompt_and_one_params_on_the_way_and_after_it():
    params = SamplingParams(n=100, allowed_token_ids=range(5000), prompt_logprobs=1)
    others = changed(params, prompt_logprobs=None)
    siblings = [
        structs.replace(REQUEST, key=7 + index, leader=7 if index else -1, params=others if index else params)
        for index in range(100)
    ]
    alone = structs.replace(REQUEST, key=200)
    data = CODEC.pack_request(AddRequests([*siblings, alone]))
    assert len(data) < 2 * len(CODEC.pack_request(AddRequests(siblings[:1])))
    first, second, *rest = CODEC.unpack_request(data).requests
    assert (first.params, second.params) == (params, others)
    assert all(request.params is second.params and request.prompt is second.prompt for request in rest[:-1])
    for sent, came in zip([*siblings, alone], [first, second, *rest], strict=True):
        assert structs.asdict(came) | {"prompt": came.prompt.tolist()} == structs.asdict(sent) | {"prompt": [1, 2, 3]}


def test_requests_with_equal_lists_of_allowed_tokens_share_one_in_the_engine():
    lists = process.SharedLists()

    def came(count):
        params = SamplingParams(allowed_token_ids=range(count))
        data = CODEC.pack_request(AddRequests([structs.replace(REQUEST, params=params)]))
        return lists.share(CODEC.unpack_request(data).requests[0]).params

    first, second = came(500), came(500)
    assert first.allowed_token_ids == tuple(range(500))
    assert second.allowed_token_ids is first.allowed_token_ids
    assert came(400).allowed_token_ids == tuple(range(400))
    for count in range(1, 1 + process.SharedLists.MAX_LISTS):
        came(count)
    assert came(500).allowed_token_ids is not first.allowed_token_ids
    assert lists.share(REQUEST) is REQUEST


def test_another_epoch_or_version_is_dropped(monkeypatch):
    data = Codec(1).pack_request(AddRequests([REQUEST]))
    assert Codec(2).unpack_request(data) is None
    monkeypatch.setattr(messages, "VERSION", messages.VERSION + 1)
    assert Codec(1).unpack_request(data) is None


def exploding(path):
    """A pickle that leaves a file where somebody loads it."""
    return f"cposix\nsystem\n(Vtouch {path}\ntR.".encode()


def mutated(data, position, value):
    return data[: position % len(data)] + bytes([value]) + data[position % len(data) + 1 :]


WHOLE = st.sampled_from([Codec(1).pack_request(AddRequests([REQUEST])), Codec(1).pack_answer(Report(EngineStats()))])
JUNK = st.one_of(
    st.binary(max_size=200),
    st.builds(mutated, WHOLE, st.integers(0, 10_000), st.integers(0, 255)),
    st.builds(lambda data, cut: data[: cut % len(data)], WHOLE, st.integers(0, 10_000)),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    ).map(msgspec.msgpack.encode),
)


@given(JUNK)
def test_what_is_no_message_is_dropped(data):
    for unpack, kinds in (
        (CODEC.unpack_request, messages.ToEngine),
        (CODEC.unpack_answer, messages.FromEngine),
    ):
        body = unpack(data)
        assert body is None or type(body) in msgspec.structs.fields(kinds)[2].type.__args__


@pytest.mark.parametrize(
    "prompt",
    [
        int32([[1, 2]]),
        int32([]),
        np.array([1, 2], dtype=np.int64),
        np.array([1.5], dtype=np.float32),
    ],
)
def test_a_prompt_of_another_shape_is_dropped(prompt):
    codec = Codec(1)
    request = msgspec.structs.replace(REQUEST, prompt=prompt)
    assert codec.unpack_request(codec.pack_request(AddRequests([request]))) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": int32([3])},
        {"counts": int32([1, 1])},
        {"counts": int32([-1]), "tokens": int32([])},
        {"keys": np.float32([1])},
        {"tokens": int32([[5, 6]])},
    ],
)
def test_a_report_that_does_not_add_up_is_dropped(wrong):
    body = Report(EngineStats(), msgspec.structs.replace(PROGRESSED, **wrong))
    assert CODEC.unpack_answer(CODEC.pack_answer(body)) is None


def test_a_flood_of_junk_neither_runs_nor_ends_an_engine(tmp_path, sockets):
    """The test plays the front end: it holds the other ends of the engine's sockets."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as answers:
        requests.connect(f"ipc://{sockets / 'requests'}")
        answers.bind(f"ipc://{sockets / 'answers'}")
        answers.rcvtimeo = 10_000
        config = dataclasses.replace(fakes.config(), folder=str(tmp_path))  # where it writes what it leaves
        addresses = f"ipc://{sockets / 'requests'}", f"ipc://{sockets / 'answers'}"
        start = StartUp(config, fakes.EXECUTOR, 1, *addresses)
        log = tmp_path / "log"
        with log.open("wb") as stderr:
            command = [sys.executable, "-m", "tessera.engine", fakes.EXECUTOR]
            engine = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr)
        engine.stdin.write(messages.pack_start(start))
        engine.stdin.flush()
        codec, marker = Codec(1), tmp_path / "exploded"
        while not isinstance(codec.unpack_answer(answers.recv()), messages.EngineReady):
            pass
        whole = codec.pack_request(AddRequests([REQUEST]))
        random = np.random.default_rng(0)
        for number in range(300):
            requests.send(random.bytes(number))
            requests.send(exploding(marker))
            requests.send(mutated(whole, number, 0xC1))
            requests.send(mutated(whole, number, number % 256))
        requests.send(
            codec.pack_request(
                AddRequests([msgspec.structs.replace(REQUEST, key=99, leader=-1, columns={}, feature_args={})])
            )
        )
        end = time.monotonic() + 10
        while True:
            report = codec.unpack_answer(answers.recv())
            if isinstance(report, Report) and report.outputs is not None and 99 in report.outputs.keys.tolist():
                break
            assert time.monotonic() < end
        assert not marker.exists()
        requests.send(codec.pack_request(messages.Shutdown()))
        assert engine.wait(10) == 0
        engine.stdin.close()
        assert "dropped a malformed message" in log.read_text()
        assert "Traceback" not in log.read_text()
