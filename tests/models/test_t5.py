"""T5 and its relatives answer as transformers does."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.t5.modeling_t5 import T5Attention

from tessera.config.modalities import encoder_length
from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.models import t5
from tessera.models.relative_bias import DistanceBuckets
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

FACTORIES = {"t5": t5.t5, "mt5": t5.mt5, "umt5": t5.umt5}
NUM_PROMPTS = 4


@pytest.fixture(scope="session")
def read(tmp_path_factory):
    """Family -> (its checkpoint's folder, the answers)"""
    return answers_of(ENCODER_DECODERS, tmp_path_factory, NUM_PROMPTS)


def measured(read, platform, family, mode):
    folder, answers = read(f"{family}-seq2seq")
    subject = Subject(folder, PLATFORMS[platform], answers, ENCODER_DECODERS[f"{family}-seq2seq"].max_model_len)
    return Cell.from_answers((platform, family, mode), *MODES[mode](subject))


@pytest.mark.parametrize(
    ("platform", "family", "mode"),
    [
        ("cpu", "t5", "chunked"),
        ("strict", "t5-v1.1", "mixed batch"),
        ("cpu", "mt5", "full cache"),
        ("strict", "umt5", "preempted each token"),
    ],
)
def test_a_cell_of_the_table(read, platform, family, mode):
    found = measured(read, platform, family, mode)
    assert found.ok, found


def test_buckets_of_a_distance_later_are_noticed(read, monkeypatch):
    right = DistanceBuckets.by_distance
    monkeypatch.setattr(DistanceBuckets, "by_distance", lambda buckets: right(buckets).roll(1))
    found = measured(read, "cpu", "t5", "mixed batch")
    assert not found.ok
    assert found.diff > found.bound


def test_two_ranks(read):
    folder, answers = read("umt5-seq2seq")
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, features=("media",)) as run:
        for answer in answers:
            run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        run.finish()
    assert list(run.answers.values()) == [list(answer.answer) for answer in answers]


@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (12, 29), (5, 3), (4, 70)])
def test_distances_are_counted_as_there(count, farthest):
    buckets = DistanceBuckets(count, farthest, causal=True)
    behind = torch.arange(-3 * farthest, 1)
    theirs = T5Attention._relative_position_bucket(
        behind, bidirectional=False, num_buckets=count, max_distance=farthest
    )
    assert torch.equal(buckets.by_distance()[behind.clamp(min=1 - buckets.reach) + buckets.reach - 1], theirs)


@pytest.fixture
def made():
    """(factory, what config.json says) -> the decoder and what was built for it"""

    def make(factory, said, dtype="float32"):
        device = ReferencePlatform().open(0)
        build = Build(BoundOps(REFERENCE, device), device, dtype, reference_backends())
        return factory(build, said, 448), build

    return make


@pytest.mark.parametrize("family", FACTORIES)
def test_what_config_leaves_out_is_what_transformers_takes_for_it(made, family):
    theirs = CONFIG_MAPPING[family]()
    ours, build = made(FACTORIES[family], {})
    config, layers = ours.config, ours.config.layers
    assert (config.vocab, config.hidden, config.inner) == (theirs.vocab_size, theirs.d_model, theirs.d_ff)
    assert (len(layers), layers[0].heads, layers[0].head_dim) == (theirs.num_layers, theirs.num_heads, theirs.d_kv)
    assert layers[0].relative_reach == theirs.relative_attention_max_distance + 1
    assert (config.tied, config.eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)
    assert config.activation == {"gelu_new": "gelu_tanh"}.get(theirs.dense_act_fn, theirs.dense_act_fn)
    said = {"architectures": [f"{family.upper()}ForConditionalGeneration"]}
    assert encoder_length(said) == build.caches[1].spec.length == 1024


@pytest.mark.parametrize(
    ("factory", "said", "scaled"),
    [
        (t5.t5, {"tie_word_embeddings": False}, False),
        (t5.t5, {"scale_decoder_outputs": False}, False),
        (t5.t5, {"tie_word_embeddings": None}, True),
        (t5.umt5, {"tie_word_embeddings": False}, False),
        (t5.umt5, {}, True),
        (t5.mt5, {}, False),
    ],
)
def test_the_head_of_one_weight_takes_less(made, factory, said, scaled):
    ours, _ = made(factory, said)
    assert ours.head.scale == (512**-0.5 if scaled else 1.0)


def test_what_is_refused_is_one_line(made):
    for said, reason in (
        ({"feed_forward_proj": "gated-relu"}, "activation 'relu' is not supported"),
        ({"relative_attention_max_distance": 16}, "relative_attention_max_distance in config.json must be more than"),
        ({"relative_attention_max_distance": 2**17}, "and at most 65,536"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets has an invalid value"),
    ):
        with pytest.raises(ModelError, match=reason):
            made(t5.t5, said)
    with pytest.raises(ModelError, match="T5's activations may be out of float16's range"):
        made(t5.t5, {}, dtype="float16")
