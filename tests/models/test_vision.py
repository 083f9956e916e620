"""Models that read images answer as transformers does, and a comparison finds features that are wrong or elsewhere."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tessera.config import EngineConfig
from tessera.features.media import EncoderCache
from tessera.models.through_transformers.model import ThroughTransformers
from tessera.models.through_transformers.tower import Tower
from tessera.runner.media import MediaInWorker
from tests.models.answers import answers_of
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.vision import WITH_IMAGES

NUM_PROMPTS = 3
"""With one image, with three and with none, or the fewest that the type takes."""
FEW_SLOTS = 20
"""For two images of LLaVA's tiny model."""


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    return answers_of(WITH_IMAGES, tmp_path_factory, NUM_PROMPTS)


def measured(seen, family, mode="chunked", times=1):
    """times: how often each prompt is asked."""
    folder, answers = seen(family)
    subject = Subject(folder, PLATFORMS["cpu"], answers * times, WITH_IMAGES[family].max_model_len)
    compared, evidence = MODES[mode](subject)
    return Cell.from_answers(("cpu", family, mode), compared, evidence)


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_a_cell_of_the_table(seen, family):
    found = measured(seen, family)
    assert found.ok, found


@pytest.fixture
def few_slots(monkeypatch):
    """An encoder cache that has no room for three images."""
    monkeypatch.setattr(EngineConfig, "encoder_cache_tokens", property(lambda config: FEW_SLOTS))


@pytest.mark.usefixtures("few_slots")
def test_images_that_displace_each_other(seen):
    found = measured(seen, "llava", times=2)
    assert found.ok, found


@pytest.mark.parametrize(
    ("family", "division"),
    [
        ("qwen2-vl", {"pipeline_parallel_size": 2}),
        ("gemma3-vision", {"tensor_parallel_size": 2}),
        ("mllama-vision", {"tensor_parallel_size": 2}),
        ("ernie-4.5-vl", {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
    ],
)
def test_divided_models(seen, family, division):
    """Each stage turns tokens by their axes; features are added once, also where every rank has the whole sum; experts
    for text and those for images are divided alike."""
    folder, answers = seen(family)
    with EngineRun(folder, "cpu", features=("media",), executor=THREADS, depth=2, **division) as run:
        for answer in answers:
            run.add(answer.prompt, len(answer.answer), media=answer.media, temperature=0.0, ignore_eos=True)
        run.finish()
        assert [*run.answers.values()] == [[*answer.answer] for answer in answers]


def test_two_ranks_encode_each_another_image(seen, monkeypatch):
    """And none of them one that the other encodes."""
    folder, answers = seen("llava")
    encode, threads = Tower.encode, []

    def noted(*asked):
        threads.append(threading.get_ident())
        return encode(*asked)

    monkeypatch.setattr(Tower, "encode", noted)
    with EngineRun(folder, "cpu", features=("media",), executor=THREADS, tensor_parallel_size=2) as run:
        for answer in answers:
            run.add(answer.prompt, len(answer.answer), media=answer.media, temperature=0.0, ignore_eos=True)
        run.finish()
        assert [*run.answers.values()] == [[*answer.answer] for answer in answers]
    unlike = {media.digest for answer in answers for media in answer.media}
    assert len(threads) == len(unlike)
    assert len({*threads}) == 2


# ---- faults ----------------------------------------------------------------------------------------------------------


def assert_found(seen, mode="chunked", times=1):
    found = measured(seen, "llava", mode, times)
    assert not found.ok
    assert found.diff > found.bound


def test_features_one_place_further(seen, monkeypatch):
    encode = Tower.encode
    monkeypatch.setattr(Tower, "encode", lambda *asked: encode(*asked).roll(1, 0))
    assert_found(seen)


def test_features_of_another_image_of_the_prompt(seen, monkeypatch):
    begin = MediaInWorker.begin

    def swapped(worker, step):
        if step.media is not None and len(step.media.encode) > 1:
            first, second, *_ = step.media.encode
            first.slots, second.slots = second.slots, first.slots
        begin(worker, step)

    monkeypatch.setattr(MediaInWorker, "begin", swapped)
    assert_found(seen, "mixed batch")


@pytest.mark.usefixtures("few_slots")
def test_slots_that_another_image_has_taken(seen, monkeypatch):
    def allocate(cache, size):
        while cache._free.size < size:
            oldest = next(digest for digest in cache._slots if digest not in cache._used)
            cache._free = np.concatenate([cache._free, cache._slots[oldest]])  # which is still known
        taken, cache._free = cache._free[:size], cache._free[size:]
        return taken

    monkeypatch.setattr(EncoderCache, "_allocate", allocate)
    assert_found(seen, times=2)


def test_tokens_of_images_that_keep_their_own_embeddings(seen, monkeypatch):
    monkeypatch.setattr(MediaInWorker, "bits", lambda worker, columns: frozenset())
    assert_found(seen)


def test_another_vision_feature_layer(seen, monkeypatch):
    encode = Tower.encode

    def last(tower, *asked):
        tower.model.config.vision_feature_layer = -1
        return encode(tower, *asked)

    monkeypatch.setattr(Tower, "encode", last)
    assert_found(seen)


def test_features_that_are_added_behind_another_layer(seen, monkeypatch):
    add = ThroughTransformers.add_behind
    monkeypatch.setattr(ThroughTransformers, "add_behind", lambda model, layers: add(model, [-1, *layers[1:]]))
    found = measured(seen, "granite-docling")
    assert found.diff > found.bound
