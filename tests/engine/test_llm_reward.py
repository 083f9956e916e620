"""Reward models: what they make of prompts is what plain torch makes of transformers' hidden states."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification, Qwen2Config, Qwen2Model

from tessera import LLM
from tessera.errors import ConfigError, RequestError
from tessera.pooling_params import PoolingParams
from tests.engine.test_llm_pooling import OPTIONS

STEP = 7
PROMPTS = [[5, 9, STEP, 11, 3, 42, STEP], [8], [STEP, *range(20, 43), STEP, STEP, 2]]
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
RAW = PoolingParams(use_activation=False)


def write(folder, model, architecture, weights):
    model.config.architectures = [architecture]
    model.config.save_pretrained(folder)
    body = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file({**body, **weights}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def judge():
    """The hidden states and the head of Qwen2.5-Math-RM's form."""
    torch.manual_seed(5)
    model = Qwen2Model(Qwen2Config(**SIZES)).float().eval()
    heads = {labels: nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, labels)) for labels in (1, 2)}

    @torch.inference_mode()
    def numbers(ids, labels):
        return heads[labels](model(torch.tensor([ids])).last_hidden_state[0]).numpy()

    return model, heads, numbers


@pytest.fixture(scope="module")
def folder(judge, tmp_path_factory):
    model, heads, _ = judge

    def of(architecture, labels):
        weights = {f"score.{name}": tensor.detach() for name, tensor in heads[labels].state_dict().items()}
        return write(tmp_path_factory.mktemp("judge"), model, architecture, weights)

    return of


def close(outputs, wanted):
    for output, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(output.outputs.data), want, rtol=1e-4, atol=1e-5)


def test_a_number_for_each_token(folder, judge):
    wanted = [judge[2](prompt, 1) for prompt in PROMPTS]
    with LLM(folder("Qwen2ForRewardModel", 1), skip_tokenizer_init=True, **OPTIONS) as llm:
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), wanted)
        close(llm.reward(PROMPTS, use_tqdm=False), [1 / (1 + np.exp(-want)) for want in wanted])
        raw = PoolingParams("classify", use_activation=False)
        close(llm.encode(PROMPTS, raw, use_tqdm=False), [want[-1] for want in wanted])
        with pytest.raises(RequestError, match="does not embed texts"):
            llm.embed(PROMPTS)


def test_numbers_of_steps(folder, judge):
    wanted = [judge[2](prompt, 2)[np.array(prompt) == STEP] for prompt in PROMPTS]
    path, options = folder("Qwen2ForProcessRewardModel", 2), {**OPTIONS, "skip_tokenizer_init": True}
    with LLM(path, pooler_config={"step_tag_id": STEP}, **options) as llm:
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), wanted)
        probabilities = [np.exp(want) / np.exp(want).sum(-1, keepdims=True) for want in wanted]
        close(llm.reward(PROMPTS, use_tqdm=False), probabilities)
    with LLM(path, pooler_config={"pooling_type": "ALL"}, **options) as llm:
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), [judge[2](prompt, 2) for prompt in PROMPTS])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "must name the token behind each step, of the model's 50"),
        ({"pooler_config": {"step_tag_id": -1}}, "must name the token behind each step"),
        ({"pooler_config": {"pooling_type": "MEAN"}}, "pooling_type of this model must be STEP or ALL"),
        ({"pooler_config": {"normalize": True}}, "does not support the key 'normalize' for this model"),
        ({"convert": "embed"}, "judges texts and does not embed; remove --convert"),
    ],
)
def test_what_a_model_of_steps_cannot_be_told(folder, flags, message):
    with pytest.raises(ConfigError, match=message):
        LLM(folder("Qwen2ForProcessRewardModel", 2), skip_tokenizer_init=True, **{**OPTIONS, **flags})


def test_a_classifier_with_one_label_judges_texts(tmp_path):
    torch.manual_seed(6)
    model = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1, pad_token_id=None)).float().eval()
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["architectures"] == ["LlamaForSequenceClassification"]
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt])).logits[0].numpy() for prompt in PROMPTS]
    with LLM(tmp_path, skip_tokenizer_init=True, **OPTIONS) as llm:
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), wanted)
