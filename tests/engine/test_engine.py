"""Engine.step, the order of a start, and the main loop of the process, all in this one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config import ParallelConfig
from tessera.config.defaults import fill_defaults
from tessera.engine.engine import Engine, depth
from tessera.engine.messages import AbortRequests, AddRequests, Report, Shutdown
from tessera.engine.process import EngineProcess
from tessera.errors import ModelError, PlatformError
from tessera.platform import Capabilities, Default, Progress
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tests.engine import fakes


def request(key, *, prompt=(1, 2, 3), **given):
    params = SamplingParams(**{"max_tokens": 5, **given})
    return Request(
        key=key, request_id=str(key), prompt=int32(prompt), params=params, max_tokens=params.max_tokens, seed=0
    )


@pytest.fixture
def engine(request):
    def make(behaviour="", **scheduler):
        engine = Engine(fakes.config(behaviour, **scheduler), executor=fakes.EXECUTOR)
        request.addfinalizer(engine.close)
        return engine

    return make


def finish(engine):
    """Tokens by key, and who ended why."""
    tokens, reasons = {}, {}
    while engine.has_work:
        outputs = engine.step()
        if outputs is not None:
            for key, token in zip(outputs.keys.tolist(), outputs.tokens.tolist(), strict=True):
                tokens.setdefault(key, []).append(token)
            reasons |= {end.key: (end.reason, end.stop_token) for end in outputs.finished}
    return tokens, reasons


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_steps_give_the_same_tokens_however_many_are_in_flight(engine, steps_in_flight):
    engine = engine(depth=steps_in_flight)
    stop = fakes.answer([4], 9)[3]
    engine.add(request(1))
    engine.add(request(2, prompt=[4], max_tokens=9, stop_token_ids=[stop]))
    tokens, reasons = finish(engine)
    assert tokens == {1: fakes.answer([1, 2, 3], 5), 2: fakes.answer([4], 4)}
    assert reasons == {1: ("length", None), 2: ("stop", stop)}
    engine.check_integrity()


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_so_many_steps_are_under_way_before_the_first_is_waited_for(engine, steps_in_flight, monkeypatch):
    events = []
    launch = fakes.FakeExecutor.execute
    monkeypatch.setattr(fakes.FakeExecutor, "execute", lambda self, step: (events.append("go"), launch(self, step))[1])
    engine = engine(depth=steps_in_flight)
    engine.add(request(1, max_tokens=9))
    while engine.has_work:
        events.append("done" if engine.step() is not None else "on the way")
    assert events[: 2 * steps_in_flight] == ["go", "on the way"] * (steps_in_flight - 1) + ["go", "done"]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_an_abort_at_any_step_ends_the_request(engine, steps_in_flight):
    for moment in range(4):
        one = engine(depth=steps_in_flight)
        one.add(request(1, max_tokens=50))
        one.add(request(2))
        for _ in range(moment):
            one.step()
        one.abort([1, 77])
        tokens, _ = finish(one)
        assert tokens[2] == fakes.answer([1, 2, 3], 5)[-len(tokens[2]) :]
        assert len(tokens.get(1, [])) <= 1
        one.check_integrity()


@pytest.mark.parametrize(
    ("asynchronous", "stages", "asked", "expected"),
    [
        (False, 1, None, 1),
        (True, 1, None, 2),
        (False, 4, None, 4),
        (True, 4, None, 5),
        (False, 1, 3, 3),
        (True, 4, 1, 1),
    ],
)
def test_depth_is_pipeline_stages_and_one_more_where_the_host_may_run_ahead(asynchronous, stages, asked, expected):
    config = dataclasses.replace(fakes.config(depth=asked), parallel=ParallelConfig(pipeline_parallel_size=stages))
    capabilities = Capabilities(dtypes=("float32",), async_dispatch=asynchronous)
    assert depth(config, capabilities) == expected


def test_a_start_that_fails_closes_its_executor(tmp_path):
    for words in ("fail-load", "no-memory", "crash-load", "problems"):
        mark = tmp_path / words
        with pytest.raises(Exception, match=r"model|weights|bug|dance"):
            Engine(fakes.config(f"{words} leave-a-mark {mark}"), executor=fakes.EXECUTOR)
        assert mark.exists()


def test_what_ended_a_start_is_told_even_if_closing_fails(caplog):
    with pytest.raises(ModelError, match="no such model"):
        Engine(fakes.config("fail-load fail-close"), executor=fakes.EXECUTOR)
    assert "cannot be closed" in caplog.text


def test_a_start_tells_its_progress_and_its_phases(engine):
    heard = []
    engine = Engine(fakes.config(), heard.append, executor=fakes.EXECUTOR)
    assert heard == [Progress("load", 1, 2), Progress("warm_up", 1, 1)]
    assert list(engine.info.phases) == ["executor", "load", "allocate", "warm_up"]
    engine.close()


def test_a_platforms_default_fills_what_the_user_left_open():
    config = fakes.config()
    defaults = {"scheduler.max_num_seqs": Default(3, "three is enough"), "cache.block_size": Default(32, "wide")}
    filled, notes = fill_defaults(config, defaults)
    assert (filled.scheduler.max_num_seqs, filled.cache.block_size) == (3, 32)
    assert notes == ["scheduler.max_num_seqs = 3: three is enough", "cache.block_size = 32: wide"]
    said = dataclasses.replace(config, explicit_fields=frozenset({"scheduler.max_num_seqs", "cache.block_size"}))
    assert fill_defaults(said, defaults) == (said, [])


@pytest.mark.parametrize("path", ["nothing", "scheduler.nothing", "seed.nothing", "scheduler.max_num_seqs.nothing"])
def test_a_default_for_nothing_names_the_platforms_mistake(path):
    with pytest.raises(PlatformError, match=path):
        fill_defaults(fakes.config(), {path: Default(1, "")})


@pytest.mark.parametrize("path", ["model.dtype", "parallel.threads", "cache.memory_bytes", "no_fallback"])
def test_a_default_that_comes_too_late_is_refused(path):
    with pytest.raises(PlatformError, match=f"'{path}', which is read before platform defaults are known"):
        fill_defaults(fakes.config(), {path: Default(1, "")})


class CountedPulse:
    """Keeps how many steps were begun and ended."""

    def __init__(self):
        self.begun = self.ended = 0

    def step_begins(self):
        assert self.begun == self.ended
        self.begun += 1

    def step_ends(self):
        self.ended += 1


class ScriptedLink:
    """Gives a list of messages at each receive(), then Shutdown; keeps what is sent."""

    def __init__(self, *script):
        self.pulse = CountedPulse()
        self.script = list(script)
        self.sent = []
        self.waits = []

    def receive(self, seconds):
        self.waits.append(seconds)
        return self.script.pop(0) if self.script else [Shutdown()]

    def send(self, answer):
        self.sent.append(answer)


def run(engine, *script):
    link = ScriptedLink(*script)
    EngineProcess(engine, link).run()
    return link


def test_the_loop_sends_one_report_a_step_and_waits_only_when_idle(engine):
    link = run(engine(), [AddRequests([request(1, max_tokens=3)])], [], [], [], [])
    tokens = [report.outputs.tokens.tolist() for report in link.sent if report.outputs is not None]
    assert tokens == [[token] for token in fakes.answer([1, 2, 3], 3)]
    assert link.pulse.begun == link.pulse.ended >= 3
    assert link.waits[:4] == [1.0, 0.0, 0.0, 1.0]
    assert all(isinstance(report, Report) for report in link.sent)


def test_an_abort_is_heard_before_the_next_step(engine):
    link = run(engine(), [AddRequests([request(1, max_tokens=50)])], [AbortRequests([1])], [], [])
    tokens = [report.outputs.tokens.tolist() for report in link.sent if report.outputs is not None]
    assert tokens == [fakes.answer([1, 2, 3], 1)]
    assert link.sent[-1].stats.num_running == 0


def test_what_cannot_be_taken_is_refused_and_the_others_run(engine):
    wrong = [request(1), request(2, prompt=[fakes.VOCAB]), request(3, prompt=[-1]), request(1)]
    link = run(engine(max_waiting=2), [AddRequests([*wrong, request(4), request(5)])], [], [], [], [], [])
    refused = [(one.key, one.failure.kind) for report in link.sent for one in report.refused]
    assert refused == [(2, "RequestError"), (3, "RequestError"), (1, "RequestError"), (5, "QueueFullError")]
    keys = {key for report in link.sent if report.outputs for key in report.outputs.keys.tolist()}
    assert keys == {1, 4}


def test_a_key_may_come_again_once_its_request_has_ended(engine):
    engine = engine()
    link = run(engine, [AddRequests([request(1, max_tokens=1)])], [AddRequests([request(1, max_tokens=1)])], [], [])
    assert [one for report in link.sent for one in report.refused] == []
    assert engine.stats.counters.generation_tokens == 2


def test_blocks_are_checked_once_nobody_asks_for_more(engine, monkeypatch):
    checks = []
    monkeypatch.setattr(Engine, "check_integrity", lambda self: checks.append(self.stats.num_running))
    run(engine(), [AddRequests([request(1, max_tokens=2)])], [], [], [], [])
    assert checks == [0]


def test_a_lost_block_ends_the_engine(engine, monkeypatch):
    def lost(self):
        raise AssertionError("a block is lost")

    monkeypatch.setattr(Engine, "check_integrity", lost)
    with pytest.raises(AssertionError, match="a block is lost"):
        run(engine(), [AddRequests([request(1, max_tokens=2)])], [], [], [], [])


def test_the_prompts_of_a_step_are_what_was_sent(engine):
    engine = engine()
    prompt = np.arange(1, 60, dtype=np.int32)
    engine.add(request(1, prompt=prompt, max_tokens=2))
    assert finish(engine)[0] == {1: fakes.answer(prompt.tolist(), 2)}
