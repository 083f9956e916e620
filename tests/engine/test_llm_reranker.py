"""A language model that ranks by the logits of two tokens, as sentence-transformers saves Qwen3-Reranker: the pair is
written by the chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tessera import LLM
from tessera.errors import ModelError, RequestError
from tessera.pooling_params import PoolingParams
from tests.engine.test_llm_pooling import OPTIONS
from tests.unit.engine.bytewise import END, NUM_TOKENS, byte_level

QUERY, DOCUMENTS = "where is it?", ["over there.", "é", "east of the river, behind the old town"]
TRUE, FALSE = ord("y"), ord("n")
INSTRUCTION = "find places"
TEMPLATE = """\
{%- set said = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("find") -%}
<I>{{ said }}
<Q>{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<D>{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
{%- if add_generation_prompt %}<A>{% endif %}"""
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    },
]
Save = Callable[..., tuple[Path, Any]]


def prompt(document: str, instruction: str = "find") -> list[int]:
    text = f"<I>{instruction}\n<Q>{QUERY}\n<D>{document}<A>"
    return byte_level().encode(text, add_special_tokens=False).ids


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """The folder and transformers' model."""

    def of(
        score: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        template: str | None = TEMPLATE,
        *,
        tied: bool = True,
    ) -> tuple[Path, Any]:
        torch.manual_seed(7)
        config = Qwen3Config(
            hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=12, vocab_size=NUM_TOKENS, max_position_embeddings=96, eos_token_id=END,
            tie_word_embeddings=tied,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config).float().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        (tmp_path / "modules.json").write_text(json.dumps(MODULES))
        (tmp_path / "1_LogitScore").mkdir()
        score = {"true_token_id": TRUE, "false_token_id": FALSE} if score is None else score
        (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(score))
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings or {}))
        return tmp_path, model

    return of


@torch.inference_mode()
def logits(model: Any, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return found


def scores(llm: LLM, documents: list[str], **params: Any) -> list[float]:
    return [
        one.outputs.score for one in llm.score(QUERY, documents, use_tqdm=False, pooling_params=PoolingParams(**params))
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_the_probability_of_yes_against_no(save: Save, tied: bool) -> None:
    folder, model = save(tied=tied)
    expected = [logits(model, prompt(document))[[FALSE, TRUE]].softmax(0)[1] for document in DOCUMENTS]
    with LLM(folder, **OPTIONS) as llm:
        np.testing.assert_allclose(scores(llm, DOCUMENTS), expected, atol=1e-5)
        raw = scores(llm, DOCUMENTS, use_activation=False)
        np.testing.assert_allclose(raw, torch.tensor(expected).logit(), atol=1e-4)


def test_one_token_and_what_the_settings_say(save: Save) -> None:
    settings = {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {"places": INSTRUCTION},
        "default_prompt_name": "places",
    }
    folder, model = save({"true_token_id": TRUE, "false_token_id": None}, settings)
    expected = [logits(model, prompt(document, INSTRUCTION))[TRUE] for document in DOCUMENTS[:2]]
    with LLM(folder, **OPTIONS) as llm:
        np.testing.assert_allclose(scores(llm, DOCUMENTS[:2]), expected, atol=1e-4)


def test_a_long_document_is_cut_and_not_the_words_around_it(save: Save) -> None:
    folder, model = save()
    long, around = "abcdefghij" * 9, len(prompt(""))
    with LLM(folder, **OPTIONS) as llm:
        for side, kept in (("right", long[: 40 - around]), ("left", long[-(40 - around) :])):
            found = scores(llm, [long], truncate_prompt_tokens=40, truncation_side=side, use_activation=False)
            expected = logits(model, prompt(kept))
            np.testing.assert_allclose(found, [expected[TRUE] - expected[FALSE]], atol=1e-4)
        with pytest.raises(RequestError, match="longer without its second text"):
            scores(llm, [long], truncate_prompt_tokens=around)
        with pytest.raises(RequestError, match="context length is 96"):
            scores(llm, [long])


def test_special_tokens_in_a_document_are_text(save: Save) -> None:
    folder, model = save()
    special = byte_level().encode("<|end|>").ids
    assert special == [END]
    with LLM(folder, **OPTIONS) as llm:
        before, after = byte_level().encode("<I>find\n<Q>where is it?\n<D>").ids, byte_level().encode("<A>").ids
        spelled = [*before, *b"<|end|>", *after]
        expected = logits(model, spelled)
        found = scores(llm, ["<|end|>"], use_activation=False)
        np.testing.assert_allclose(found, [expected[TRUE] - expected[FALSE]], atol=1e-4)


@pytest.mark.parametrize("template", [None, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"])
def test_a_template_without_a_place_for_a_document(save: Save, template: str | None) -> None:
    folder, _ = save(template=template)
    with pytest.raises(ModelError, match="--chat-template for the roles query and document"):
        LLM(folder, **OPTIONS)


def test_the_model_generates_if_it_is_told_to(save: Save) -> None:
    folder, _ = save()
    with LLM(folder, runner="generate", **OPTIONS) as llm:
        assert llm.generate("abc", use_tqdm=False)
        with pytest.raises(RequestError):
            llm.score("a", "b", use_tqdm=False)
