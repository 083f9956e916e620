"""Images that tokens see through cross attention: which of their positions, and that a comparison finds others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config.tiled_encoder import TiledEncoder
from tessera.errors import RefusedError, RequestError
from tessera.layers.cross_attention import CrossAttention
from tessera.media.placed import PlacedMedia
from tessera.media.placement import TILES_SHOWN, tiled_image
from tessera.media.ranges import SeenRanges
from tessera.runner.media import RangesInWorker
from tessera_cpu.tape import Recorded
from tests.models.answers import answers_of
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.compare import Cell
from tools.parity.image_kinds import TILED
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import NUM_TOKENS
from tools.parity.vision import WITH_IMAGES

FAMILY = "mllama-vision"
NUM_PROMPTS = 6
"""With one image, three, none, two, one and three; some of them directly behind each other."""


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    """(its checkpoint's folder, the answers)"""
    return answers_of(WITH_IMAGES, tmp_path_factory, NUM_PROMPTS)(FAMILY)


def measured(seen, mode, platform="cpu"):
    folder, answers = seen
    return Cell.from_answers((platform, FAMILY, mode), *MODES[mode](Subject(folder, PLATFORMS[platform], answers)))


@pytest.mark.parametrize(
    ("platform", "mode"), [("cpu", "mixed batch"), ("strict", "chunked"), ("cpu", "full cache"), ("strict", "drafts")]
)
def test_a_cell_of_the_table(seen, platform, mode):
    found = measured(seen, mode, platform)
    assert found.ok, found


def test_two_answers_of_one_request_share_what_is_written(seen, monkeypatch):
    folder, (answer, *_) = seen
    written, write = [], CrossAttention.write

    def counted(layer, states, launch, caches):
        written.append(len(states))
        return write(layer, states, launch, caches)

    monkeypatch.setattr(CrossAttention, "write", counted)
    with EngineRun(folder, "cpu", features=("media",)) as run:
        first = run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        second = run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True, leader=first)
        run.finish()
    assert run.answers == {key: list(answer.answer) for key in (first, second)}
    assert written == [TILED.length] * 2  # once for each of two layers


def test_what_is_refused_is_one_line(seen):
    folder, answers = seen
    one = answers[0].media[0]
    with EngineRun(folder, "cpu", features=("media",), limit_mm_per_prompt={"image": 2}) as run:
        with pytest.raises(RequestError, match="A prompt has up to 2 images .--limit-mm-per-prompt.; this one has 3"):
            run.add(answers[1].prompt, media=answers[1].media)
        with pytest.raises(RequestError, match="An image of this model has 40 positions"):
            run.add(answers[0].prompt, media=[PlacedMedia("image", one.digest, one.places, one.inputs, 30, 10)])
    with pytest.raises(RefusedError, match="MllamaForConditionalGeneration cannot be divided into stages"):
        EngineRun(folder, "cpu", executor=THREADS, pipeline_parallel_size=2, features=("media",))


def test_without_images_there_are_no_layers_for_them(seen):
    """And so prefixes are cached."""
    folder, answers = seen
    (text,) = (answer for answer in answers if not answer.media)
    with EngineRun(folder, "cpu", limit_mm_per_prompt={"image": 0}, enable_prefix_caching=True) as run:
        for _ in range(2):
            run.add(text.tokens[:-1], 1, ignore_eos=True)
            run.finish()
    assert [*run.answers.values()] == [[text.tokens[-1]]] * 2
    assert [*run.cached.values()] == [0, 32]


@needs_kernels
def test_a_replayed_step_is_the_step(seen, tmp_path, monkeypatch):
    """In bfloat16, with heads of a size that the CPU's kernels take: where no row has images, as layers for these are
    not native."""
    folder, answers = seen
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"hidden_size": 96, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    replayed, call = [], Recorded.__call__
    monkeypatch.setattr(
        Recorded, "__call__", lambda step, launch: replayed.append(launch.key.bits) or call(step, launch)
    )

    def answered(**flags):
        flags = {"dtype": "bfloat16", "load_format": "dummy", "features": ("media",), **flags}
        with EngineRun(tmp_path, "cpu", **flags) as run:
            for answer in answers:
                run.add(answer.prompt, NUM_TOKENS, media=answer.media)
            run.finish()
        return run.answers

    together = answered()
    assert {*replayed} == {frozenset()}
    replayed.clear()
    assert answered(enforce_eager=True) == together
    assert not replayed


def placed(*images: tuple[int, int]) -> list[PlacedMedia]:
    """By the place of its token and the tiles that show something, of 4 of 10 positions."""
    shown = ((at, {TILES_SHOWN: np.arange(4)[None, None] < tiles}) for at, tiles in images)
    return [tiled_image(b"", at, inputs, TiledEncoder(4, 10)) for at, inputs in shown]


def test_a_token_sees_the_images_that_stand_together_and_before_all_everything():
    ranges = SeenRanges.from_media(10, placed((2, 1), (5, 3), (6, 2)))
    everything, first, second, both = (0, 120, 0), (0, 10, 1), (10, 30, 1), (10, 50, 1)
    assert [*zip(*ranges.prompt.tolist(), strict=True)] == [
        *[everything] * 2, *[first] * 3, second, *[both] * 4,
    ]  # fmt: skip
    assert [*zip(*ranges.of_tokens(8, 12).tolist(), strict=True)] == [both] * 4
    assert tuple(ranges.last) == both


# ---- faults ----------------------------------------------------------------------------------------------------------


def replaced(monkeypatch, row, change):
    """Changes one of the three numbers that are said of each token."""
    of_tokens = SeenRanges.of_tokens

    def other(ranges, start, end):
        found = of_tokens(ranges, start, end)
        found[row] = change(found[row])
        return found

    monkeypatch.setattr(SeenRanges, "of_tokens", other)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        pytest.param(0, lambda first: 0 * first, id="the-first-image-for-all"),
        pytest.param(1, lambda number: number - 1, id="one-position-less"),
        pytest.param(2, lambda shown: 0 * shown + 1, id="an-mlp-before-all-images"),
    ],
)
def test_another_range(seen, monkeypatch, row, change):
    replaced(monkeypatch, row, change)
    found = measured(seen, "mixed batch")
    assert not found.diff <= found.bound


def test_answers_that_see_the_image_of_another_row(seen, monkeypatch):
    columns = RangesInWorker.token_columns

    def other(worker, launch):
        worker._last = dict.fromkeys(worker._last, int32([0, 10, 1])[:, None])
        return columns(worker, launch)

    monkeypatch.setattr(RangesInWorker, "token_columns", other)
    found = measured(seen, "mixed batch")
    assert not found.diff <= found.bound


def test_images_in_another_order(seen, monkeypatch):
    before = RangesInWorker.before

    def turned(worker, launch):
        worker._sources = {row: slots[::-1].copy() for row, slots in worker._sources.items()}
        before(worker, launch)

    monkeypatch.setattr(RangesInWorker, "before", turned)
    found = measured(seen, "mixed batch")
    assert not found.diff <= found.bound
