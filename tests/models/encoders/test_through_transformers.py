"""Encoders without an implementation here, through transformers' code: texts of unlike lengths in one step have the
states and numbers that each has alone."""

from __future__ import annotations

import pytest
import torch

from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tests.models.encoders.families import (
    THROUGH_TRANSFORMERS,
    THROUGH_TRANSFORMERS_DECODERS,
    hidden_states,
    logits,
    texts,
)
from tests.models.encoders.test_parity import TEXT, TOKEN, assert_close, pooled
from tests.models.loader.folders import config_only, dummy_config
from tests.platforms.engine_run import EngineRun
from tools.pooling_table import THROUGH_TRANSFORMERS as IN_THE_TABLE


def test_the_table_lists_what_is_compared():
    assert {family.name for family in THROUGH_TRANSFORMERS.values()} == set(IN_THE_TABLE)


@pytest.mark.parametrize("family", THROUGH_TRANSFORMERS)
def test_hidden_states(saved, family):
    folder, model = saved(family, "Model")
    assert_close(pooled(folder, "cpu", "token_embed"), hidden_states(model, texts()))


@pytest.mark.parametrize("family", ["ernie", "ultrabert"])
def test_on_a_strict_platform(saved, family):
    folder, model = saved(family, "Model")
    assert_close(pooled(folder, "strict", "token_embed"), hidden_states(model, texts()))


@pytest.mark.parametrize("family", [*THROUGH_TRANSFORMERS, *THROUGH_TRANSFORMERS_DECODERS])
def test_logits_of_texts(saved, family):
    folder, model = saved(family, TEXT)
    assert_close(pooled(folder, "cpu", "classify"), logits(model, texts()))


@pytest.mark.parametrize("family", ["data2vec", "ultrabert", "gpt-neox"])
def test_logits_of_tokens(saved, family):
    folder, model = saved(family, TOKEN)
    assert_close(pooled(folder, "cpu", "token_classify"), logits(model, texts()))


@pytest.mark.parametrize("family", ["roberta-prelayernorm", "ultrabert"])
def test_a_model_with_a_head_that_is_not_served(saved, family):
    folder, model = saved(family, "ForMaskedLM")
    assert_close(pooled(folder, "cpu", "token_embed"), hidden_states(model.base_model, texts()))


def test_a_decoder_without_its_head(saved):
    folder, model = saved("gpt-neox", "Model")
    found = pooled(folder, "cpu", "embed", pooler_config={"pooling_type": "LAST"})
    assert_close(found, [states[-1] for states in hidden_states(model, texts())])


def test_types_of_tokens(saved):
    folder, model = saved("ernie", "Model")
    text, other = texts(2)
    with EngineRun(folder, "cpu", max_model_len=64) as run:
        keys = [run.pool(text, "token_embed", columns={"type_boundary": 9}), run.pool(other, "token_embed")]
        run.finish()
        found = [run.pooled[key] for key in keys]
    types = torch.tensor([[int(place >= 9) for place in range(len(text))]])
    assert_close(found, [*hidden_states(model, [text], token_type_ids=types), *hidden_states(model, [other])])


def test_the_start_says_so(saved):
    folder, _ = saved("ernie", "Model")
    with EngineRun(folder, "cpu", max_model_len=64) as run:
        assert any("ErnieModel runs through transformers' code" in note for note in run.engine.info.notes)


SIZES = {"head_dim": None, "num_key_value_heads": None}
REFUSED = [
    ("DebertaV2Model", "deberta-v2", SIZES, "it does not take attention from transformers' attention interface"),
    ("MobileBertModel", "mobilebert", {**SIZES, "hidden_size": 512}, "tokens meet outside of attention"),
    ("EsmModel", "esm", {**SIZES, "pad_token_id": 1}, "it uses more than one embedding of its tokens"),
    (
        "OpenAIPrivacyFilterModel",
        "openai_privacy_filter",
        {"pad_token_id": 1, "eos_token_id": 2},
        "attention sinks where attention looks ahead",
    ),
    ("T5GemmaForSequenceClassification", "t5gemma", {}, "it is the decoder of a model that has an encoder"),
    ("ArceeModel", "arcee", {}, "see only those before them"),
]


@pytest.mark.parametrize(("architecture", "model_type", "differs", "message"), REFUSED)
def test_refused_by_name(tmp_path, architecture, model_type, differs, message):
    folder = config_only(tmp_path, architectures=[architecture], model_type=model_type, **differs)
    with pytest.raises(ModelError) as raised:
        Engine(dummy_config(folder))
    assert message in str(raised.value)
    assert f"'{architecture}' is not supported" in str(raised.value)
    assert "\n" not in str(raised.value)
