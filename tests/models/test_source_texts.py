"""Decoders that write from a text that an encoder read answer as transformers does."""

from __future__ import annotations

import pytest
from transformers import CONFIG_MAPPING

from tessera.config.modalities import encoder_length
from tessera.errors import ModelError, RequestError
from tessera.layers.build import Build
from tessera.layers.embedding import SinusoidEmbedding
from tessera.media.placed import PlacedMedia
from tessera.models import bart
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.reference import reference_backends
from tessera.testing import ReferencePlatform
from tests.models.answers import answers_of
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.compare import Cell
from tools.parity.encoder_decoders import ENCODER_DECODERS
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import NUM_TOKENS

FACTORIES = {
    "bart": (bart.bart, "BartForConditionalGeneration"),
    "m2m_100": (bart.m2m_100, "M2M100ForConditionalGeneration"),
    "marian": (bart.marian, "MarianMTModel"),
    "mbart": (bart.mbart, "MBartForConditionalGeneration"),
    "pegasus": (bart.pegasus, "PegasusForConditionalGeneration"),
    "plbart": (bart.plbart, "PLBartForConditionalGeneration"),
}
NUM_PROMPTS = 4


@pytest.fixture(scope="session")
def read(tmp_path_factory):
    """Family -> (its checkpoint's folder, the answers)"""
    return answers_of(ENCODER_DECODERS, tmp_path_factory, NUM_PROMPTS)


@pytest.mark.parametrize(
    ("platform", "family", "mode"),
    [
        ("cpu", "bart", "chunked"),
        ("strict", "m2m_100", "full cache"),
        ("cpu", "marian", "mixed batch"),
        ("strict", "mbart", "mixed batch"),
        ("cpu", "pegasus", "mixed batch"),
        ("strict", "plbart", "mixed batch"),
    ],
)
def test_a_cell_of_the_table(read, platform, family, mode):
    name = f"{family}-seq2seq"
    folder, answers = read(name)
    subject = Subject(folder, PLATFORMS[platform], answers, ENCODER_DECODERS[name].max_model_len)
    found = Cell.from_answers((platform, name, mode), *MODES[mode](subject))
    assert found.ok, found


@pytest.mark.parametrize("family", ["marian", "mbart"])
def test_two_ranks(read, family):
    folder, answers = read(f"{family}-seq2seq")
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, features=("media",)) as run:
        for answer in answers:
            run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        run.finish()
    assert list(run.answers.values()) == [list(answer.answer) for answer in answers]


@pytest.mark.parametrize("family", FACTORIES)
def test_what_config_leaves_out_is_what_transformers_takes_for_it(family):
    theirs, device = CONFIG_MAPPING[family](), ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends())
    factory, architecture = FACTORIES[family]
    ours = factory(build, {}, 448)
    config, layers = ours.config, ours.config.layers
    assert (config.vocab, config.hidden, config.inner) == (theirs.vocab_size, theirs.d_model, theirs.decoder_ffn_dim)
    assert (len(layers), layers[0].heads) == (theirs.decoder_layers, theirs.decoder_attention_heads)
    assert (config.tied, config.activation) == (theirs.tie_word_embeddings, theirs.activation_function)
    said = {"architectures": [architecture]}
    assert encoder_length(said) == build.caches[1].spec.length == theirs.max_position_embeddings


@pytest.mark.parametrize(("reaching", "last"), [(True, 1e-4), (False, 1e-3)])
def test_frequencies_end_where_they_end(reaching, last):
    """Position 1: of four frequencies from 1 down, the last."""
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends())
    embedding = SinusoidEmbedding(build, 3, 1, 8, reaching=reaching)
    embedding.parameter.fill({})
    row = embedding.parameter.tensor[0]
    assert row[0].item() == pytest.approx(0.841471)
    assert row[3].item() == pytest.approx(last, rel=1e-6)
    assert row[4].item() == pytest.approx(0.540302)


def test_what_is_refused_is_one_line(read):
    folder, (answer, *_) = read("bart-seq2seq")
    (text,) = answer.media
    sound = PlacedMedia("audio", text.digest, text.places, text.inputs, text.length)
    with EngineRun(folder, "cpu", features=("media",)) as run:
        for media in ((), (text, text), (sound,)):
            with pytest.raises(RequestError, match="This model's encoder reads a text of up to 96 tokens; send one"):
                run.add(answer.prompt, media=media)
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends())
    with pytest.raises(ModelError, match="share_encoder_decoder_embeddings: false in config.json is not supported"):
        bart.marian(build, {"share_encoder_decoder_embeddings": False}, 96)
