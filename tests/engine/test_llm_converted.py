"""--convert classify: language models that classify by a head in their files, or by the logits of tokens, and go on to
generate."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from tessera import LLM
from tessera.errors import ConfigError, ModelError
from tessera.pooling_params import PoolingParams
from tessera.sampling_params import SamplingParams
from tests.engine.test_llm_pooling import OPTIONS
from tests.engine.test_llm_reward import PROMPTS, RAW, SIZES, STEP, close

CONVERTED = {**OPTIONS, "convert": "classify", "skip_tokenizer_init": True}
TOKENS = [13, 4]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(8)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES)).float().eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted")
    model.save_pretrained(path)
    return path


@torch.inference_mode()
def logits(model, prompt):
    return model(torch.tensor([prompt])).logits[0].numpy()


def test_by_the_logits_of_tokens(folder, model):
    wanted = [logits(model, prompt)[:, TOKENS] for prompt in PROMPTS]
    with LLM(folder, pooler_config={"returned_token_ids": TOKENS}, **CONVERTED) as llm:
        raw = PoolingParams("classify", use_activation=False)
        close(llm.encode(PROMPTS, raw, use_tqdm=False), [want[-1] for want in wanted])
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), wanted)
        params = SamplingParams(temperature=0.0, max_tokens=1)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        firsts = [output.outputs[0].token_ids[0] for output in outputs]
    assert firsts == [int(logits(model, prompt)[-1].argmax()) for prompt in PROMPTS]


def test_of_steps(folder, model):
    """As math-shepherd's models judge them."""
    wanted = [logits(model, prompt)[np.array(prompt) == STEP][:, TOKENS] for prompt in PROMPTS]
    says = {"pooling_type": "STEP", "step_tag_id": STEP, "returned_token_ids": TOKENS}
    with LLM(folder, runner="pooling", pooler_config=says, **CONVERTED) as llm:
        close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), wanted)


def test_by_a_head_of_its_own(folder, model, tmp_path):
    score = torch.randn(3, 24)
    said = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "num_labels": 3}))
    save_file({**model.state_dict(), "score.weight": score}, tmp_path / "model.safetensors")
    with torch.inference_mode():
        wanted = [model.model(torch.tensor([prompt])).last_hidden_state[0, -1] @ score.T for prompt in PROMPTS]
    with LLM(tmp_path, runner="pooling", **CONVERTED) as llm:
        outputs = llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False)
    for output, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output.outputs.probs, want, rtol=1e-4, atol=1e-5)


def test_a_difference_of_logits_that_config_json_names(folder, model, tmp_path):
    said = json.loads((folder / "config.json").read_text())
    said |= {"classifier_from_token": ["no", "<yes>"], "method": "from_2_way_softmax"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / "model.safetensors")
    tokens = {"added_tokens": [{"id": 13, "content": "<yes>"}], "model": {"vocab": {"no": 4, "yes": 5}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    with LLM(tmp_path, **CONVERTED) as llm:
        outputs = llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False)
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        last = logits(model, prompt)[-1]
        np.testing.assert_allclose(output.outputs.probs, [last[13] - last[4]], rtol=1e-4, atol=1e-5)


def test_a_model_without_a_head(folder):
    with pytest.raises(ModelError, match=r"no head to classify with \(the checkpoint has no 'score.weight'\)"):
        LLM(folder, **CONVERTED)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"returned_token_ids": [50]}, "returned_token_ids must be a list of 1 to 1,024 tokens of the model's 50"),
        ({"returned_token_ids": []}, "returned_token_ids must be a list of"),
        ({"returned_token_ids": [1], "normalize": True}, "does not support the key 'normalize' for this model"),
    ],
)
def test_tokens_that_are_none(folder, said, message):
    with pytest.raises(ConfigError, match=message):
        LLM(folder, pooler_config=said, **CONVERTED)
