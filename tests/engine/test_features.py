"""A plugin's feature in the engine: what requests may ask of it, what they wait for, and what they may draw."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.engine.engine import Engine
from tessera.errors import ConfigError, PlatformError, RequestError
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tests.engine import fakes
from tests.platforms.fake_feature import EVEN_PLUGIN, LOOKS

EVERY_DEPTH = pytest.mark.parametrize("depth", [1, 2, 3])


class Masked(fakes.FakeExecutor):
    """Draws what FakeExecutor draws, or the next token that the row's mask allows. log: execute, sample and result of
    each step. masks: of each step that had any."""

    def __init__(self, config):
        super().__init__(config)
        self.log: list[tuple[str, int]] = []
        self.masks: dict[int, object] = {}

    def execute(self, step):
        self.log.append(("execute", step.step))
        return super().execute(step)

    def sample(self, pending, masks=None):
        self.log.append(("sample", pending.step))
        output = super().sample(pending).result()
        if masks is not None:
            self.masks[pending.step] = masks
            for row, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
                allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: fakes.VOCAB].astype(bool)
                place = output.rows.tolist().index(row)
                drawn = int(output.tokens[place])
                while not allowed[drawn]:
                    drawn = (drawn + 1) % fakes.VOCAB
                output.tokens[place] = self.rows[row][0][-1] = drawn
        return Taken(self.log, output)


class Taken:
    """A step's output. log: where it says that it was taken."""

    def __init__(self, log, output):
        self.log, self.output = log, output

    def done(self):
        return True

    def result(self):
        self.log.append(("result", self.output.step))
        return self.output


@pytest.fixture
def start(request):
    def make(*features, depth=1, **scheduler):
        config = dataclasses.replace(
            fakes.config(depth=depth, **scheduler), plugins=(EVEN_PLUGIN,), features=features or ("even=2",)
        )
        engine = Engine(config, executor=f"{__name__}:Masked")
        request.addfinalizer(engine.close)
        return engine

    return make


def add(engine, key, *, prompt=(1, 2, 3), leader=-1, max_tokens=5, columns=None, **params):
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    engine.add(
        Request(
            key=key, request_id=str(key), prompt=int32(prompt), params=sampling, max_tokens=max_tokens, seed=0,
            leader=leader, columns=dict(columns or {}),
        )
    )  # fmt: skip


def finish(engine):
    """Tokens, and how each request finished, by key; and the order in which they finished."""
    tokens, finished = {}, {}
    while engine.has_work:
        outputs = engine.step()
        if outputs is not None:
            for key, token in zip(outputs.keys.tolist(), outputs.tokens.tolist(), strict=True):
                tokens.setdefault(key, []).append(token)
            finished |= {end.key: end for end in outputs.finished}
    engine.check_integrity()
    return tokens, finished


@EVERY_DEPTH
def test_a_masked_request_draws_what_it_may_and_ends_when_nothing_may_follow(start, depth):
    engine = start(depth=depth)
    add(engine, 1, columns={"even": 4}, max_tokens=9)
    add(engine, 2, prompt=(4,), max_tokens=9)
    add(engine, 3, prompt=(7, 8), columns={"even": 9}, max_tokens=6)
    tokens, finished = finish(engine)
    assert tokens[2] == fakes.answer([4], 9)
    assert len(tokens[1]) == 4
    assert len(tokens[3]) == 6
    assert not any(token % 2 for token in tokens[1] + tokens[3])
    assert (finished[1].reason, finished[1].complete) == ("stop", True)
    assert (finished[3].reason, finished[3].complete) == ("length", False)
    assert (finished[2].reason, finished[2].complete) == ("length", False)


@EVERY_DEPTH
def test_the_forward_pass_of_a_masked_step_is_launched_before_the_host_has_the_tokens_it_starts_from(start, depth):
    engine = start(depth=depth)
    add(engine, 1, columns={"even": 6}, max_tokens=6)
    finish(engine)
    log = engine._executor.log
    order = {event: place for place, event in enumerate(log)}
    for step in range(1, 6):
        assert order["result", step - 1] < order["sample", step]
        assert (order["execute", step] < order["result", step - 1]) == (depth > 1)
    assert len(engine._executor.masks) >= 6


@EVERY_DEPTH
def test_steps_without_a_masked_row_go_as_they_did(start, depth):
    engine = start(depth=depth)
    add(engine, 1, max_tokens=8)
    tokens, _ = finish(engine)
    assert tokens == {1: fakes.answer([1, 2, 3], 8)}
    assert not engine._executor.masks
    log = engine._executor.log
    assert [event for event, _ in log[: 2 * depth]] == ["execute", "sample"] * depth


def test_only_masked_rows_have_masks_and_they_come_with_their_row(start):
    engine = start("even=9", depth=2)
    for key in range(6):
        add(engine, key, prompt=(key + 1,), columns={"even": 50} if key in (1, 4) else {}, max_tokens=6)
    tokens, _ = finish(engine)
    for key in range(6):
        assert (tokens[key] == fakes.answer([key + 1], 6)) == (key not in (1, 4))
        assert key not in (1, 4) or not any(token % 2 for token in tokens[key])
    for masks in engine._executor.masks.values():
        assert masks.bits.shape == (len(masks.rows), fakes.VOCAB // 32)
        assert len(masks.rows) <= 2


def test_a_request_waits_until_it_is_ready_and_no_other_waits_with_it(start):
    engine = start(depth=1)
    add(engine, 1, columns={"even": 2})
    add(engine, 2, prompt=(4,), max_tokens=2)
    assert (engine.stats.num_waiting, engine.stats.num_deferred) == (2, 1)
    first = engine.step()
    assert first.keys.tolist() == [2]
    assert (engine.stats.num_waiting, engine.stats.num_deferred) == (1, 1)
    tokens, finished = finish(engine)
    assert len(tokens[1]) == 2
    assert finished[1].complete


def test_an_engine_that_only_waits_does_not_call_its_requests_stuck(start):
    engine = start()
    add(engine, 1, columns={"even": 2})
    for _ in range(LOOKS - 2):
        assert engine.step() is None
        assert engine.has_work
    tokens, finished = finish(engine)
    assert len(tokens[1]) == 2
    assert finished[1].reason == "stop"


def test_a_request_that_is_found_out_late_ends_with_the_client_s_error(start):
    engine = start()
    add(engine, 1, columns={"even": 13})
    tokens, finished = finish(engine)
    assert tokens == {}
    assert (finished[1].reason, finished[1].message) == ("error", "even must not be 13.")
    assert finished[1].param == "extra_args.even"


def test_a_request_may_be_aborted_while_it_waits(start):
    engine = start()
    add(engine, 1, columns={"even": 2})
    engine.abort([1])
    _, finished = finish(engine)
    assert not engine.has_work
    assert engine.stats.num_waiting == 0
    assert finished.get(1) is None or finished[1].reason == "abort"


def test_as_many_run_as_its_resource_has_room_for(start):
    engine = start("even=2")
    for key in range(5):
        add(engine, key, columns={"even": 3})
    tokens, _ = finish(engine)
    assert {len(answer) for answer in tokens.values()} == {3}
    assert engine._features.resources()[0].most_taken == 2


def test_siblings_are_masked_each_for_itself(start):
    engine = start("even=9", depth=2)
    add(engine, 0, prompt=range(40), columns={"even": 3})
    for key in range(1, 4):
        add(engine, key, prompt=range(40), leader=0, columns={"even": 3 + key})
    tokens, _ = finish(engine)
    assert {key: len(answer) for key, answer in tokens.items()} == {0: 3, 1: 4, 2: 5, 3: 5}


def test_a_token_that_the_feature_does_not_accept_ends_the_request_and_reaches_nobody(start, monkeypatch):
    engine = start()
    monkeypatch.setattr(Masked, "sample", lambda self, pending, masks=None: fakes.FakeExecutor.sample(self, pending))
    odd = next(first for first in range(1, 40) if fakes.answer([first], 1)[0] % 2)
    add(engine, 1, prompt=(odd,), columns={"even": 4})
    tokens, finished = finish(engine)
    assert tokens == {}
    assert (finished[1].reason, finished[1].param) == ("error", "")  # the request's own fault, of no single field
    assert "allow no token" in finished[1].message
    assert finished[1].failure == "nothing_allowed"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_nothing_may_follow_ends_with_the_feature_s_error(start, depth):
    """Beside others, which go on; the token that the step draws for it reaches nobody."""
    engine = start("even=9", depth=depth)
    add(engine, 1, columns={"even": 17}, max_tokens=30)
    add(engine, 2, columns={"even": 4})
    add(engine, 3, max_tokens=6)
    tokens, finished = finish(engine)
    assert {key: len(answer) for key, answer in tokens.items()} == {1: 2, 2: 4, 3: 6}
    assert (finished[1].reason, finished[1].param, finished[1].failure) == ("error", "", "dead_end")
    assert finished[1].message == "No 17 are even."
    assert finished[2].complete
    assert not engine.has_work


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"even": 0}, "even must be at least 1, got 0."), ({"odd": 1}, "Unknown extra_args (vllm_xargs) field 'odd'.")],
)
def test_what_it_cannot_serve_is_refused_at_once(start, columns, said):
    engine = start()
    with pytest.raises(RequestError) as refused:
        add(engine, 1, columns=columns)
    assert refused.value.message == said
    assert not engine.has_work


def test_where_it_is_off_nothing_of_it_is_there(start):
    engine = start("none")
    with pytest.raises(RequestError, match="Unknown extra_args"):
        add(engine, 1, columns={"even": 1})
    with pytest.raises(RequestError, match="structured_outputs is off here"):
        add(engine, 2, structured_outputs={"regex": "a"})
    assert engine._features.resources() == []
    assert not engine._features.fields


@pytest.mark.parametrize(
    ("feature", "error", "said"),
    [
        ("even=many", ConfigError, "even=many: the option must be a whole number."),
        ("evne", ConfigError, "feature 'evne' is not supported; there is even"),
        ("structured_outputs=1", ConfigError, "takes no option"),
    ],
)
def test_a_wrong_flag_is_one_line(start, feature, error, said):
    with pytest.raises(error) as refused:
        start(feature)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_what_is_no_feature_is_refused(start, monkeypatch):
    monkeypatch.setattr("tests.platforms.fake_feature.EVEN", "no feature")
    with pytest.raises(PlatformError, match="is no tessera.platform.Feature"):
        start("even")
