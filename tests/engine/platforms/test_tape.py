"""Decode steps and texts of encoders as one native call on the CPU platform: what an engine answers is what it answers
op by op."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import tessera
from tessera.reference.encoder_attention import ReferenceEncoderAttention
from tessera.scheduler.speculation import DraftLengths
from tessera.testing.conformance.drafts import Longest
from tessera.testing.conformance.tiny import save_checkpoint
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.tape import MAX_ROWS, MAX_TOKENS, Recorded
from tests.platforms.cpu_kernels import needs_kernels

pytestmark = needs_kernels

SETTINGS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": None, "hidden_size": 96},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": 19,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "tie_word_embeddings": False,
        "sliding_window": 19,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "glm4-moe": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "tie_word_embeddings": False,
        "n_routed_experts": 9,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 44,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size_mlp": 96,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 64,
        "attn_temperature_tuning": False,
    },
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": 6,
        "head_dim": None,
        "q_lora_rank": 24,
        "kv_lora_rank": 40,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 12,
    },
}
WITH_STATES: dict[str, dict[str, Any]] = {
    "qwen3.5": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 13,
        "linear_conv_kernel_dim": 4,
    },
    "granite4-h": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 84,
        "mamba_n_heads": 6,
        "mamba_d_head": 24,
        "mamba_n_groups": 2,
        "mamba_d_state": 9,
        "residual_multiplier": 0.5,
    },
    "falcon-h1": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "mamba_n_heads": 6,
        "mamba_d_head": 24,
        "mamba_d_ssm": 144,
        "mamba_n_groups": 2,
        "mamba_d_state": 9,
        "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 0.9,
        "ssm_multipliers": [0.8, 1.3, 0.7, 1.1, 1.4],
    },
    "nemotron-h": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M*-",
        "mamba_num_heads": 6,
        "mamba_head_dim": 18,
        "n_groups": 2,
        "ssm_state_size": 11,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention", "conv"],
        "head_dim": None,
        "hidden_size": 96,
        "block_auto_adjust_ff_dim": False,
    },
}


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each replay, the warm-up's first, which is of one."""
    seen: list[int] = []
    plain = Recorded.__call__

    def counted(self: Recorded, launch: Any) -> Tensor:
        seen.append(launch.key.tokens)
        return plain(self, launch)

    monkeypatch.setattr(Recorded, "__call__", counted)
    return seen


def checkpoint(folder: Path, family: str) -> str:
    save_checkpoint(folder, settings_of(FAMILIES[family]), "bfloat16")
    return str(folder)


def settings_of(family: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**SETTINGS, **family}.items() if value is not None}


def answers(model: str, lengths: list[int], **flags: Any) -> list[Any]:
    """Tokens and log probabilities of requests that end one after the other."""
    rng = random.Random(7)
    prompts = [[rng.randrange(3, 101) for _ in range(length)] for length in lengths]
    params = [
        tessera.SamplingParams(temperature=0.0, max_tokens=3 + 2 * number, ignore_eos=True, logprobs=1)
        for number in range(len(prompts))
    ]
    flags = {"dtype": "bfloat16", "max_num_seqs": 8, "max_model_len": 300, **flags}
    llm = tessera.LLM(model, skip_tokenizer_init=True, platform="cpu", kv_cache_memory_bytes=1 << 22, **flags)
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    return [(list(one.outputs[0].token_ids), str(one.outputs[0].logprobs)) for one in outputs]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replayed_step_is_the_step(
    family: str, tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lengths = checkpoint(tmp_path, family), [5, 33, 16, 70, 1, 100]
    found = answers(model, lengths)
    assert replays[0] == 1
    assert set(replays[1:]) == {1, 2, 3, 4, 5, 6}
    number = len(replays)
    monkeypatch.setattr(CpuPlatform, "graph_runner", lambda self, device: None)
    assert answers(model, lengths) == found
    assert len(replays) == number


@pytest.mark.parametrize("family", WITH_STATES)
def test_a_replayed_step_of_a_model_with_states(
    family: str, tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings_of(WITH_STATES[family])))
    found = answers(str(tmp_path), [5, 33, 16, 70, 1, 100], load_format="dummy")
    assert set(replays[1:]) == {1, 2, 3, 4, 5, 6}
    monkeypatch.setattr(CpuPlatform, "graph_runner", lambda self, device: None)
    assert answers(str(tmp_path), [5, 33, 16, 70, 1, 100], load_format="dummy") == found


def test_drafts_are_verified_by_the_recorded_step(
    tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("choose", "suspended", "looked"):
        monkeypatch.setattr(DraftLengths, name, getattr(Longest, name))
    model, lengths = checkpoint(tmp_path, "llama"), [5, 33, 16, 70, 1, 100, 8, 90]
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
    found = answers(model, lengths, speculative_config=config)
    assert max(replays) > len(lengths)
    monkeypatch.setattr(CpuPlatform, "graph_runner", lambda self, device: None)
    assert answers(model, lengths, speculative_config=config) == found


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_with_quantised_weights(
    scheme: str, tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lengths = checkpoint(tmp_path, "qwen2"), [5, 33, 16, 70, 1, 100]
    found = answers(model, lengths, quantization=scheme)
    assert replays[0] == 1
    assert set(replays[1:]) == {1, 2, 3, 4, 5, 6}
    monkeypatch.setattr(CpuPlatform, "graph_runner", lambda self, device: None)
    assert answers(model, lengths, quantization=scheme) == found


def test_steps_of_more_rows_run_op_by_op(tmp_path: Path, replays: list[int]) -> None:
    model, lengths = checkpoint(tmp_path, "llama"), [4] * (MAX_ROWS + 1)
    found = answers(model, lengths, max_num_seqs=MAX_ROWS + 1)
    assert max(replays) == MAX_ROWS
    assert len(found) == MAX_ROWS + 1


def test_eager_where_that_is_asked_for(tmp_path: Path, replays: list[int]) -> None:
    assert len(answers(checkpoint(tmp_path, "llama"), [5, 9], enforce_eager=True)) == 2
    assert not replays


def test_what_is_not_native_runs_op_by_op(tmp_path: Path, replays: list[int], caplog: pytest.LogCaptureFixture) -> None:
    model = checkpoint(tmp_path, "llama")
    with caplog.at_level(logging.INFO, "tessera.cpu"):
        assert len(answers(model, [5, 9], dtype="float32")) == 2
    assert not replays
    assert "is not among the native kernels" in caplog.text


BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 101,
    "hidden_size": 72,
    "intermediate_size": 90,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 600,
    "hidden_act": "gelu",
}
MODERNBERT: dict[str, Any] = {
    **BERT,
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "global_attn_every_n_layers": 2,
    "local_attention": 20,
}


def test_an_encoder_that_is_not_native_keeps_no_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that a recorded step would read stays in memory, for each shape that a step has. Heads of 20 elements have
    no kernel."""
    (tmp_path / "config.json").write_text(json.dumps({**BERT, "hidden_size": 60, "head_dim": 20}))
    captured: list[bool] = []
    plan = ReferenceEncoderAttention.plan

    def noted(self: Any, launch: Any, group: Any, buffers: Any) -> Any:
        captured.append(buffers is not None)
        return plan(self, launch, group, buffers)

    monkeypatch.setattr(ReferenceEncoderAttention, "plan", noted)
    assert len(vectors(str(tmp_path), [5, 9, 14], dtype="float32", max_num_seqs=2)) == 3
    assert captured[-2:] == [False, False]


def vectors(model: str, lengths: list[int], **flags: Any) -> list[list[float]]:
    rng = random.Random(7)
    texts = [[rng.randrange(3, 101) for _ in range(length)] for length in lengths]
    llm = tessera.LLM(model, skip_tokenizer_init=True, platform="cpu", load_format="dummy", **flags)
    return [output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)]


@pytest.mark.parametrize(
    ("settings", "dtype", "pooling"),
    [
        (BERT, "float32", "MEAN"),
        (BERT, "bfloat16", "CLS"),
        (MODERNBERT, "float32", "LAST"),
        (MODERNBERT, "bfloat16", "MEAN"),
    ],
)
def test_texts_of_an_encoder(
    settings: dict[str, Any], dtype: str, pooling: str, tmp_path: Path, replays: list[int]
) -> None:
    """Of unlike lengths in one step, of fewer tokens in the next, and more than a tape takes in the last."""
    (tmp_path / "config.json").write_text(json.dumps(settings))
    flags = {"dtype": dtype, "pooler_config": {"seq_pooling_type": pooling}, "max_num_seqs": 4}
    lengths = [5, 33, 1, 70, 16, 2, 3, 4, MAX_TOKENS + 1]
    together = vectors(str(tmp_path), lengths, **flags)
    assert replays == [1, 109, 25]
    assert vectors(str(tmp_path), lengths, enforce_eager=True, **flags) == together
    assert len(replays) == 3
