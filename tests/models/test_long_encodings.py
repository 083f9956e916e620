"""An image that is more work than a step may do is encoded over several, beside which others go on."""

from __future__ import annotations

import pytest

from tessera.models.through_transformers.partial_encoding import PartialEncoding
from tessera.models.through_transformers.tower import Tower
from tests.models.answers import answers_of
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.vision import WITH_IMAGES

BUDGET = 4
"""Tokens of a step, of which an image of LLaVA's tiny model has 9."""
SIZE = 9
STEPS = 3
"""In which an image is encoded."""


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    return answers_of(WITH_IMAGES, tmp_path_factory, 3)


@pytest.fixture
def encoded(monkeypatch):
    """What the towers were asked to encode, and the work of each part of an encoding, of all of one."""
    asked, parts = [], []
    encode, advance = Tower.encode, PartialEncoding.advance

    def counted(tower, modality, inputs):
        asked.append(modality)
        return encode(tower, modality, inputs)

    def measured(encoding, share):
        before = encoding._work
        features = advance(encoding, share)
        parts.append((encoding._work - before) / encoding._meter.expected("image"))
        return features

    monkeypatch.setattr(Tower, "encode", counted)
    monkeypatch.setattr(PartialEncoding, "advance", measured)
    return asked, parts


def running(folder, **flags):
    flags = {"max_num_seqs": 3, "max_num_batched_tokens": BUDGET, "features": ("media",), **flags}
    return EngineRun(folder, "cpu", **flags)


def with_one_image(answers):
    return next(answer for answer in answers if len(answer.media) == 1)


def ask(run, answer, **params):
    return run.add(answer.prompt, len(answer.answer), media=answer.media, ignore_eos=True, **params)


def work_of(step):
    """What a step computes of prompts, and how far it gets with each encoding."""
    media = step.media
    return {} if media is None else {one.number: one.done for one in media.encode}


def test_others_decode_in_each_step_of_an_encoding(seen, encoded):
    folder, answers = seen("llava")
    pictured = with_one_image(answers)
    with running(folder) as run:
        chat = run.add([3, 4, 5], 24, ignore_eos=True)
        run.step()
        begun = len(run.steps)
        key = ask(run, pictured)
        run.finish()
        assert run.answers[key] == list(pictured.answer)
        row = int(run.steps[0].rows[0])
        assert all(row in step.samples for step in run.steps[1:24])
    encoding = [step for step in run.steps[begun:] if work_of(step)]
    assert len(encoding) >= STEPS
    assert [work_of(step)[0] for step in encoding][-1] == SIZE
    done = 0
    for step in encoding:
        prompts = step.total_num_scheduled_tokens - (row in step.rows)
        assert prompts + work_of(step)[0] - done <= BUDGET
        done = work_of(step)[0]
    asked, parts = encoded
    assert len(run.answers[chat]) == 24
    assert len(asked) == 1
    assert sum(parts) == pytest.approx(1)
    assert max(parts) < 2 / STEPS


def test_a_step_may_only_encode(seen, encoded):
    folder, answers = seen("llava")
    pictured = with_one_image(answers)
    with running(folder) as run:
        key = ask(run, pictured)
        run.finish()
        assert run.answers[key] == list(pictured.answer)
        only = [step for step in run.steps if not len(step.rows)]
        assert only
        assert all(work_of(step) for step in only)
    assert len(encoded[0]) == 1


def test_equal_images_in_flight_and_of_a_second_answer_are_encoded_once(seen, encoded):
    folder, answers = seen("llava")
    pictured = with_one_image(answers)
    with running(folder, enable_prefix_caching=False) as run:
        first = ask(run, pictured)
        keys = [first, ask(run, pictured), ask(run, pictured, leader=first)]
        run.finish()
        assert [run.answers[key] for key in keys] == [list(pictured.answer)] * 3
        again = ask(run, pictured)
        run.finish()
        assert run.answers[again] == list(pictured.answer)
        counters = {counter.name: counter.value for counter in run.engine.stats.feature_counters}
    assert len(encoded[0]) == 1
    assert counters["mm_cache_queries"] - counters["mm_cache_hits"] == 1


def test_an_aborted_encoding_is_dropped(seen, encoded):
    folder, answers = seen("llava")
    pictured = with_one_image(answers)
    with running(folder) as run:
        chat = run.add([3, 4, 5], 12, ignore_eos=True)
        key = ask(run, pictured)
        while not any(work_of(step) for step in run.steps):
            run.step()
        run.engine.abort([key])
        run.finish()
        (worker,) = (feature for feature in run.executor.worker.runner.features if hasattr(feature, "_encodings"))
        assert not worker._encodings
        assert len(run.answers[chat]) == 12
        assert sum(len(work_of(step)) for step in run.steps) == 1
        again = ask(run, pictured)
        run.finish()
        assert run.answers[again] == list(pictured.answer)
    assert len(encoded[0]) == 2


def test_a_preempted_request_finds_its_encoding_where_it_was(seen, encoded):
    folder, answers = seen("llava")
    pictured = with_one_image(answers)
    with running(folder) as run:
        key = ask(run, pictured)
        while not any(work_of(step) for step in run.steps):
            run.step()
        requests = run.engine._scheduler._requests
        requests.preempt(requests[key])
        run.finish()
        assert run.answers[key] == list(pictured.answer)
    assert len(encoded[0]) == 1


@pytest.mark.parametrize("division", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_workers_encode_the_same_parts(seen, division):
    folder, answers = seen("qwen2-vl")
    with running(folder, executor=THREADS, depth=2, **{division: 2}) as run:
        keys = [ask(run, answer) for answer in answers]
        run.finish()
        assert [run.answers[key] for key in keys] == [list(answer.answer) for answer in answers]
