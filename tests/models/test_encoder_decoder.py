"""Encoder-decoders answer as transformers does, and a comparison finds what another row's encoder made."""

from __future__ import annotations

import pytest
from transformers import WhisperConfig

from tessera.config.modalities import encoder_length
from tessera.errors import RefusedError, RequestError
from tessera.features.media import EncoderCache
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossAttention
from tessera.models.multimodal import EncoderDecoder
from tessera.models.whisper import whisper
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.reference import reference_backends
from tessera.testing import ReferencePlatform
from tessera_cpu.tape import Recorded
from tests.models.answers import answers_of
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.compare import Cell
from tools.parity.encoder_decoders import ENCODER_DECODERS, WHISPER
from tools.parity.encoder_inputs import Sounds
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import NUM_TOKENS, make_prompts

FAMILY = "whisper-audio"
NUM_PROMPTS = 6
"""Of four sounds."""


@pytest.fixture(scope="session")
def heard(tmp_path_factory):
    """(its checkpoint's folder, the answers)"""
    return answers_of(ENCODER_DECODERS, tmp_path_factory, NUM_PROMPTS)(FAMILY)


def measured(heard, mode, platform="cpu"):
    folder, answers = heard
    return Cell.from_answers((platform, FAMILY, mode), *MODES[mode](Subject(folder, PLATFORMS[platform], answers)))


@pytest.mark.parametrize(
    ("platform", "mode"),
    [("cpu", "chunked"), ("strict", "full cache"), ("strict", "preempted each token")],
)
def test_a_cell_of_the_table(heard, platform, mode):
    found = measured(heard, mode, platform)
    assert found.ok, found


def test_what_config_leaves_out_is_what_transformers_takes_for_it():
    theirs, device = WhisperConfig(), ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends())
    ours = whisper(build, {}, 448)
    config, layers = ours.config, ours.config.layers
    assert (config.vocab, config.hidden, config.inner) == (theirs.vocab_size, theirs.d_model, theirs.decoder_ffn_dim)
    assert (len(layers), layers[0].heads) == (theirs.decoder_layers, theirs.decoder_attention_heads)
    assert (config.tied, config.activation) == (theirs.tie_word_embeddings, theirs.activation_function)
    said = {"architectures": ["WhisperForConditionalGeneration"]}
    assert encoder_length(said) == build.caches[1].spec.length == theirs.max_source_positions
    assert ours.positions.parameter.parts["weight"][0].whole[0] == theirs.max_target_positions


def test_two_answers_of_one_request_share_what_the_encoder_made(heard, monkeypatch):
    folder, (answer, *_) = heard
    written, write = [], CrossAttention.write

    def counted(layer, states, launch, caches):
        written.append(len(states))
        write(layer, states, launch, caches)

    monkeypatch.setattr(CrossAttention, "write", counted)
    with EngineRun(folder, "cpu", features=("media",)) as run:
        first = run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        second = run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True, leader=first)
        run.finish()
    assert run.answers == {key: list(answer.answer) for key in (first, second)}
    assert written == [21] * 3  # once for each of three layers


def test_two_ranks(heard):
    folder, answers = heard
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, features=("media",)) as run:
        for answer in answers:
            run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        run.finish()
    assert list(run.answers.values()) == [list(answer.answer) for answer in answers]


def test_what_is_refused_is_one_line(heard):
    folder, (answer, *_) = heard
    with EngineRun(folder, "cpu", features=("media",)) as run:
        with pytest.raises(RequestError, match="This model writes what it hears in one audio; send one"):
            run.add(answer.prompt)
        with pytest.raises(RequestError, match="This model writes what it hears in one audio; send one"):
            run.add(answer.prompt, media=answer.media * 2)
    with pytest.raises(RefusedError, match="WhisperForConditionalGeneration cannot be divided into stages"):
        EngineRun(folder, "cpu", executor=THREADS, pipeline_parallel_size=2, features=("media",))


@needs_kernels
def test_a_replayed_step_is_the_step(tmp_path, monkeypatch):
    """In bfloat16, with heads of a size that the CPU's kernels take."""
    config = WhisperConfig(
        **{**WHISPER, "d_model": 96, "decoder_attention_heads": 6, "encoder_attention_heads": 6, "vocab_size": 101},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        architectures=["WhisperForConditionalGeneration"],
    )
    config.save_pretrained(tmp_path)
    prompts = make_prompts(101, 5)
    media, replayed, call = Sounds(10, 42, 21).placed(prompts), [], Recorded.__call__
    monkeypatch.setattr(
        Recorded, "__call__", lambda step, launch: replayed.append(launch.num_rows) or call(step, launch)
    )

    def answers(**flags):
        flags = {"dtype": "bfloat16", "load_format": "dummy", "features": ("media",), **flags}
        with EngineRun(tmp_path, "cpu", **flags) as run:
            for prompt, placed in zip(prompts, media, strict=True):
                run.add(prompt, NUM_TOKENS, media=placed)
            run.finish()
        return run.answers

    together = answers()
    assert max(replayed) == len(prompts)
    replayed.clear()
    assert answers(enforce_eager=True) == together
    assert not replayed


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_what_the_encoder_of_another_row_made(heard, monkeypatch):
    forward = EncoderDecoder.forward

    def swapped(model, x, launch, caches, residual=None):
        if model.sources is not None:
            model.sources = model.sources.roll(21)
        return forward(model, x, launch, caches, residual)

    monkeypatch.setattr(EncoderDecoder, "forward", swapped)
    found = measured(heard, "mixed batch")
    assert not found.diff <= found.bound  # it may be NaN


def test_what_an_earlier_request_left_in_the_blocks(heard, monkeypatch):
    written = []

    def once(layer, states, launch, caches, write=CrossAttention.write):
        if written.count(layer) < 1:
            written.append(layer)
            write(layer, states, launch, caches)

    monkeypatch.setattr(CrossAttention, "write", once)
    found = measured(heard, "full cache")
    assert not found.diff <= found.bound  # it may be NaN


def test_slots_of_the_encoder_cache_that_another_sound_has_taken(heard, monkeypatch):
    take_step = EncoderCache.take_step

    def stale(cache, row_of):
        media = take_step(cache, row_of)
        if media is not None:
            media.encode = [one for one in media.encode if one.number == 0]
        return media

    monkeypatch.setattr(EncoderCache, "take_step", stale)
    found = measured(heard, "mixed batch")
    assert not found.diff <= found.bound  # it may be NaN
