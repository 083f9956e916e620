"""LLM with a model that answers with numbers: folders as sentence-transformers and transformers write them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from tessera import LLM
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.text.blocking_workers import BlockingTextWorkers
from tests.unit.engine.bytewise import END, NUM_TOKENS, byte_level

PLATFORM = "tessera_cpu.platform:CpuPlatform"
OPTIONS = {"platform": PLATFORM, "dtype": "float32", "kv_cache_memory_bytes": 1 << 20}
TEXTS = ["Where is the harbour?", "a", "The harbour lies behind the old town, east of the river."]
DENSE = {
    "in_features": 24,
    "out_features": 10,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=12, vocab_size=NUM_TOKENS, max_position_embeddings=128, eos_token_id=END,
    )  # fmt: skip
    return LlamaModel(config).float().eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Saved without the head, as sentence-transformers does, so that its tensors have bare names."""
    path = tmp_path_factory.mktemp("embedder")
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    (path / "tokenizer.json").write_text(byte_level().to_str())
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for number, (name, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    for name, content in (("1_Pooling", {"pooling_mode_mean_tokens": True}), ("2_Dense", DENSE)):
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps(content))
    weights = {"linear.weight": torch.randn(10, 24), "linear.bias": torch.randn(10)}
    save_file(weights, path / "2_Dense" / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def expected(model, folder):
    """By hand: the mean of the hidden states, the dense layer, length 1."""
    weights = load_file(folder / "2_Dense" / "model.safetensors")

    @torch.inference_mode()
    def vector(ids, *, normalize=True, dimensions=None):
        mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        dense = torch.tanh(F.linear(mean, weights["linear.weight"], weights["linear.bias"]))[:dimensions]
        return (F.normalize(dense, dim=-1) if normalize else dense).numpy()

    return vector


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, **OPTIONS) as llm:
        yield llm


def test_embed(llm, expected):
    outputs = llm.embed(TEXTS, use_tqdm=False)
    assert [len(output.outputs.embedding) for output in outputs] == [10] * len(TEXTS)
    for output in outputs:
        np.testing.assert_allclose(output.outputs.embedding, expected(output.prompt_token_ids), atol=1e-5)


def test_encode_as_parameters_say(llm, expected):
    params = [PoolingParams(use_activation=False), PoolingParams(dimensions=4), PoolingParams("token_embed")]
    plain, cut, tokens = llm.encode(TEXTS, params, use_tqdm=False)
    np.testing.assert_allclose(plain.outputs.data, expected(plain.prompt_token_ids, normalize=False), atol=1e-5)
    np.testing.assert_allclose(cut.outputs.data, expected(cut.prompt_token_ids, dimensions=4), atol=1e-5)
    assert tokens.outputs.data.shape == (len(tokens.prompt_token_ids), 10)
    np.testing.assert_allclose(np.linalg.norm(tokens.outputs.data, axis=-1), 1, rtol=1e-5)
    assert all(output.finished for output in (plain, cut, tokens))


def test_a_text_that_is_too_long_is_refused_or_cut(llm, expected):
    long = "x" * 200
    with pytest.raises(RequestError, match=r"prompts\[1\]: This model takes texts of up to 128 tokens, and this one"):
        llm.embed(["short", [7] * 200], use_tqdm=False)
    with pytest.raises(RequestError, match=r"prompts\[0\]"):
        llm.embed(long, use_tqdm=False)
    (cut,) = llm.embed(
        long,
        pooling_params=PoolingParams(truncate_prompt_tokens=-1, truncation_side="right"),
        use_tqdm=False,
    )
    assert len(cut.prompt_token_ids) == 128
    np.testing.assert_allclose(cut.outputs.embedding, expected(cut.prompt_token_ids), atol=1e-5)


def test_texts_of_a_call_are_encoded_together(llm, monkeypatch):
    jobs, encode = [], BlockingTextWorkers.encode
    monkeypatch.setattr(
        BlockingTextWorkers, "encode", lambda self, texts, **how: jobs.append(texts) or encode(self, texts, **how)
    )
    assert len(llm.embed(TEXTS, use_tqdm=False)) == len(TEXTS)
    assert jobs == [TEXTS]


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}{{ 'so:' if add_generation_prompt }}"


def test_texts_of_a_model_that_was_trained_on_messages(folder, llm, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    says = {"modality_config": {"message": {}}, "processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}
    (copy / "sentence_bert_config.json").write_text(json.dumps(says))
    settings = {"prompts": {"query": "Find."}, "default_prompt_name": "query"}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (copy / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    (want,) = llm.embed("system: Find.;user: a harbour;so:", use_tqdm=False)
    with LLM(copy, **OPTIONS) as messages:
        (found,) = messages.embed("a harbour", use_tqdm=False)
        np.testing.assert_allclose(found.outputs.embedding, want.outputs.embedding, atol=1e-6)
        (score,) = messages.score("a harbour", "a harbour", use_tqdm=False)
    assert score.outputs.score == pytest.approx(1)


def test_an_embedder_does_not_generate(llm):
    with pytest.raises(RequestError, match="does not generate text; it can embed texts"):
        llm.generate("Hello", use_tqdm=False)
    with pytest.raises(RequestError, match="does not classify texts; it can embed texts and embed tokens"):
        llm.classify("Hello", use_tqdm=False)


def test_scores_are_cosines_of_an_embedder(folder):
    with LLM(str(folder), **OPTIONS) as llm:
        vectors = [np.asarray(output.outputs.embedding) for output in llm.embed(TEXTS, use_tqdm=False)]
        found = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
        np.testing.assert_allclose(
            [one.outputs.score for one in found], [vectors[0] @ v for v in vectors[1:]], atol=1e-5
        )
        (own,) = llm.score(TEXTS[1:2], TEXTS[2:], use_tqdm=False)
        np.testing.assert_allclose(own.outputs.score, vectors[1] @ vectors[2], atol=1e-5)
        for wrong in ((TEXTS[:2], TEXTS), ("", "a"), ("a", []), (5, "a")):
            with pytest.raises(RequestError, match="data_"):
                llm.score(*wrong)
