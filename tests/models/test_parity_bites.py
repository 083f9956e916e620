"""A comparison is worth what it finds: models that are a little wrong, and answers that are."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from tessera.kvcache.manager import KVCacheManager
from tessera.layers import norm as norm_layers
from tessera.layers import qkv
from tessera.layers.qkv import _grouped as grouped_heads
from tessera.models import bloom, falcon, gemma
from tessera.models.alibi import alibi_slopes
from tessera.platform import NormSpec
from tessera_cpu.ops import QKNorm
from tessera_cpu.routing import Route, route
from tools.parity.__main__ import by_family, main, table
from tools.parity.compare import Cell, compare
from tools.parity.families import FAMILIES, SHORT
from tools.parity.family import MAX_POSITIONS
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import Answer

NO_BIAS = {"architectures": ["LlamaForCausalLM"]}

WRONG = {
    "another theta": ("llama2", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}),
    "another epsilon": ("llama2", {"rms_norm_eps": 1e-3}),
    "no rotary scaling": ("llama3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "another linear factor": ("llama-linear", {"rope_parameters": {"factor": 3.05}}),
    "another yarn factor": ("llama-yarn", {"rope_parameters": {"factor": 4.1}}),
    "a longer yarn training": ("llama-yarn", {"rope_parameters": {"original_max_position_embeddings": SHORT + 4}}),
    "another yarn ramp": ("llama-yarn", {"rope_parameters": {"beta_slow": 0.1}}),
    "no yarn attention factor": ("llama-yarn", {"rope_parameters": {"attention_factor": 1.0}}),
    "a whole yarn ramp": ("llama-yarn-mscale", {"rope_parameters": {"truncate": True}}),
    "another yarn mscale": ("llama-yarn-mscale", {"rope_parameters": {"mscale": 1.25}}),
    "another dynamic factor": ("llama-dynamic", {"rope_parameters": {"factor": 4.1}}),
    "a window one shorter": ("mistral", {"sliding_window": 6}),
    "a window one longer": ("mistral", {"sliding_window": 8}),
    "no window": ("mistral", {"sliding_window": None}),
    "no biases": ("qwen2", NO_BIAS),
    "a window on all layers": ("qwen2-window", {"layer_types": ["sliding_attention"] * 3}),
    "no norms of heads": ("qwen3", NO_BIAS),
    "another activation": ("qwen3", {"hidden_act": "gelu"}),
    "one expert less": ("mixtral", {"num_experts_per_tok": 1}),
    "shares not renormalised": ("qwen3-moe", {"norm_topk_prob": False}),
    "shares renormalised": ("qwen3-moe-shares", {"norm_topk_prob": True}),
    "chunks one shorter": ("llama4", {"attention_chunk_size": 12}),
    "no chunks": ("llama4", {"layer_types": ["full_attention"] * 5}),
    "queries as warm everywhere": ("llama4", {"attn_temperature_tuning": False}),
    "another period of warmth": ("llama4", {"floor_scale": 6}),
    "no norms behind rotation": ("llama4", {"use_qk_norm": False}),
    "one expert of a token of Llama 4 less": ("llama4-plain", {"num_experts_per_tok": 1}),
    "another factor of the shares": ("glm4-moe", {"routed_scaling_factor": 2.45}),
    "one group less": ("glm4-moe", {"topk_group": 1, "num_experts_per_tok": 3}),
    "no groups": ("glm4-moe", {"n_group": 1, "topk_group": 1}),
    "scores not renormalised": ("glm4-moe", {"norm_topk_prob": False}),
    "one expert of each token less": ("glm4-moe", {"num_experts_per_tok": 3}),
    "no shared experts": ("glm4-moe", {"n_shared_experts": 0}),
    "no norms of heads before rotation": ("glm4-moe", {"use_qk_norm": False}),
    "no biases of q, k and v": ("glm4-moe", {"attention_bias": False}),
    "less of a head turned": ("glm4-moe", {"rope_parameters": {"partial_rotary_factor": 0.4}}),
    "scores renormalised": ("glm4-moe-shares", {"norm_topk_prob": True}),
    "scores scaled by the length of the head alone": ("deepseek-v3", {"rope_parameters": {"mscale_all_dim": 0.0}}),
    "neighbours for halves": ("glm4-moe-lite", {"rope_interleave": True}),
    "halves for neighbours": ("deepseek-v3", {"rope_interleave": False}),
    "one selected token less": ("deepseek-v3.2", {"index_topk": 6}),
    "no token left out": ("glm-moe-dsa", {"index_topk": 96}),
    "experts of all groups": ("deepseek-v2", {"topk_method": "greedy"}),
    "another factor of V2's shares": ("deepseek-v2", {"routed_scaling_factor": 4.1}),
    "no biases of the projections from x": ("deepseek-v2", {"attention_bias": False}),
    "a smaller part of the gated layers turned": ("qwen3.5", {"rope_parameters": {"partial_rotary_factor": 0.23}}),
    "another eps of the delta net": ("qwen3-next", {"rms_norm_eps": 1e-2}),
    "another eps of LFM2": ("lfm2", {"norm_eps": 1e-3}),
    "another factor of LFM2's shares": ("lfm2-moe", {"routed_scaling_factor": 1.35}),
    "no biases of the convolution": ("lfm2-bias", {"conv_bias": False}),
    "another theta of OLMo 3's windows": ("olmo3", {"rope_parameters": {"sliding_attention": {"rope_theta": 9e3}}}),
    "errors corrected by a half": ("olmo-hybrid", {"linear_allow_neg_eigval": False}),
    "a head turned where none is": ("olmo-hybrid-unturned", {"rope_parameters": {"rope_theta": 1e4}}),
    "another eps of mamba": ("granite4-h", {"rms_norm_eps": 1e-2}),
    "another upper limit of steps": ("granite4-h-dense", {"time_step_limit": [0.2, 1.1]}),
    "another lower limit of steps": ("granite4-h-dense", {"time_step_limit": [0.1, 0.9]}),
    "multiplied scores": ("granite4-h", {"attention_multiplier": 0.12}),
    "attention turned": ("granite4-h", {"position_embedding_type": "rope"}),
    "another multiplier of C": ("falcon-h1", {"ssm_multipliers": [0.8, 1.3, 0.7, 1.2, 1.4]}),
    "another multiplier of the gate": ("falcon-h1", {"mlp_multipliers": [0.75, 1.3]}),
    "a gate before the norm": ("falcon-h1-biases", {"mamba_norm_before_gate": False}),
    "attention of shared transformers unturned": ("zamba2-adapters", {"use_mem_rope": False}),
    "no adapters of their queries, keys and values": ("zamba2-adapters", {"use_shared_attention_adapter": False}),
    "no biases of Zamba's projections": ("zamba", {"mamba_proj_bias": False}),
    "another factor behind lightning attention": ("minimax", {"linear_attn_beta_factor": 1.25}),
    "another factor of what is added to an MLP": ("minimax", {"mlp_alpha_factor": 1.75}),
    "another eps of MiniMax": ("minimax", {"rms_norm_eps": 1.2e-2}),
    "another factor of Nemotron's shares": ("nemotron-3", {"routed_scaling_factor": 2.55}),
    "shares of experts over a latent renormalised": ("nemotron-3-latent", {"norm_topk_prob": True}),
    "norms of dt, B and C with another eps": ("falcon-mamba", {"mixer_rms_eps": 1e-2}),
    "dt, B and C unnormed": ("falcon-mamba", {"architectures": ["MambaForCausalLM"]}),
    "no biases of mamba's projections": ("mamba", {"use_bias": False}),
    "another eps of Jamba": ("jamba", {"rms_norm_eps": 1e-2}),
    "one expert of Jamba less": ("jamba", {"num_experts_per_tok": 1}),
    "a wider window of RecurrentGemma": ("recurrent-gemma", {"attention_window_size": 21}),
    "another soft cap of RecurrentGemma": ("recurrent-gemma", {"logits_soft_cap": 2.1}),
    "a share of each head of LFM3": ("lfm3", {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.4}}}),
    "windows of LFM3 elsewhere": ("lfm3", {"layer_types": ["conv", "full_attention", "sliding_attention", "conv"]}),
    "another cap of xLSTM's gates": ("xlstm", {"gate_soft_cap": 4.2}),
    "another eps of xLSTM's memory": ("xlstm", {"eps": 2e-2}),
    "activations of RWKV not halved": ("rwkv", {"rescale_every": 0}),
    "another eps of Kimi delta attention": ("kimi-linear", {"rms_norm_eps": 1e-3}),
    "another factor of Kimi's shares": ("kimi-linear", {"routed_scaling_factor": 2.5}),
    "another scale of Cohere's logits": ("cohere2", {"logit_scale": 0.31}),
    "no windows in Cohere 2": ("cohere2", {"layer_types": ["full_attention"] * 3}),
    "another part of M2's heads turned": ("minimax-m2", {"rope_parameters": {"partial_rotary_factor": 0.45}}),
    "one expert of M2 less": ("minimax-m2", {"num_experts_per_tok": 1}),
    "no biases of ERNIE": ("ernie4.5", {"use_bias": False}),
    "one expert of ERNIE less": ("ernie4.5-moe", {"moe_k": 1}),
    "short factors of Phi-3.5-MoE": ("phimoe", {"original_max_position_embeddings": MAX_POSITIONS}),
    "another scale of its longrope": ("phimoe", {"rope_parameters": {"long_mscale": 1.2}}),
    "a narrower margin of SparseMixer": ("phimoe", {"router_jitter_noise": 0.35}),
    "no biases of its head": ("phimoe", {"lm_head_bias": False}),
    "a wider window of Phi-3.5-MoE": ("phimoe-window", {"sliding_window": 10}),
    "short factors": ("phi3", {"original_max_position_embeddings": MAX_POSITIONS}),
    "another longrope attention factor": ("phi3", {"rope_parameters": {"attention_factor": 1.2}}),
    "a smaller part turned": ("phi4-mini", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    "all layers turned": ("smollm3", {"no_rope_layers": [1, 1, 1]}),
    "another embedding multiplier": ("granite", {"embedding_multiplier": 12.1}),
    "another residual multiplier": ("granite", {"residual_multiplier": 0.222}),
    "another attention multiplier": ("granite", {"attention_multiplier": 0.12}),
    "another scaling of logits": ("granite", {"logits_scaling": 1.51}),
    "another cap of scores": ("gemma2", {"attn_logit_softcapping": 5.5}),
    "another cap of logits": ("gemma2", {"final_logit_softcapping": 6.1}),
    "no cap of scores": ("gemma2", {"attn_logit_softcapping": None}),
    "another scale of scores": ("gemma2", {"query_pre_attn_scalar": 21}),
    "windows on the wrong layers": ("gemma2", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    "another depth": ("minicpm3", {"scale_depth": 1.15}),
    "another base of the width": ("minicpm3", {"dim_model_base": 51}),
    "another theta in windows": ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_theta": 11000.0}}}),
    "another factor elsewhere": ("gemma3", {"rope_parameters": {"full_attention": {"factor": 7.0}}}),
    "another layer norm": ("falcon-7b", {"layer_norm_epsilon": 1e-3}),
    "another norm behind the embedding": ("bloom", {"layer_norm_epsilon": 1e-3}),
    "steeper biases": ("mpt", {"attn_config": {"alibi_bias_max": 6}}),
    "another limit of queries, keys and values": ("mpt", {"attn_config": {"clip_qkv": 1.0}}),
    "another scale of MPT's scores": ("mpt", {"attn_config": {"softmax_scale": 0.42}}),
    "a tangent for the error function": ("falcon-40b", {"activation": "gelu_pytorch_tanh"}),
}


def edited(config, edit):
    """With objects within edited, not replaced."""
    both = {name: (config.get(name), value) for name, value in edit.items()}
    return config | {
        name: edited(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        for name, (old, value) in both.items()
    }


def measured(oracle, tmp_path, family, edit):
    folder, answers = oracle(family)
    for file in folder.glob("model*"):
        (tmp_path / file.name).hardlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(edited(config, edit)))
    subject = Subject(tmp_path, PLATFORMS["cpu"], answers[:3], FAMILIES[family].max_model_len)
    compared, evidence = MODES["mixed batch"](subject)
    return Cell.from_answers(("cpu", family, "mixed batch"), compared, evidence)


@pytest.mark.parametrize(("family", "edit"), WRONG.values(), ids=WRONG)
def test_a_wrong_model_is_found(oracle, tmp_path, family, edit):
    found = measured(oracle, tmp_path, family, edit)
    assert not found.ok
    assert found.diff > found.bound


# ---- formulas that no configuration changes --------------------------------------------------------------------------


def _less_offset(norm, n, dtype):
    return NormSpec(n, dtype, norm.eps, norm.offset - 0.01)


def _scaled_embedding(build, shape):
    return shape.hidden**0.5 * 1.01


def _values_before_keys(heads):
    *others, keys, values = grouped_heads(replace(heads, kv=(0, 1)))
    return [*others, values, keys]


def _by_head(spec, ops):
    """Queries and keys normed, but by heads of 12."""
    norm = ops.bind("rms_norm", NormSpec(12, spec.dtype, spec.eps))

    def call(x, q_weight, k_weight):
        for part, weight in zip(x.split((spec.q, spec.k, spec.k), -1), (q_weight, k_weight), strict=False):
            heads = part.unflatten(-1, (-1, 12))
            part.copy_((norm(heads, torch.ones(12)) * weight.unflatten(-1, (-1, 12))).flatten(-2))

    return call


def _weighted_by_biased_scores(spec, logits, bias=None):
    weights, ids = route(replace(spec, renormalise=False, scale=1.0), logits, bias)
    weights = weights + bias[ids.long()]
    return weights / weights.sum(-1, keepdim=True) * spec.scale, ids


FORMULAS = {
    "experts chosen without their biases": (
        "glm4-moe",
        Route,
        "bind",
        lambda self, spec, ops, device: lambda logits, bias=None: route(spec, logits),
    ),
    "biases in the weights": (
        "glm4-moe",
        Route,
        "bind",
        lambda self, spec, ops, device: lambda logits, bias=None: _weighted_by_biased_scores(spec, logits, bias),
    ),
    "an offset of 0.99": ("gemma", norm_layers.Norm, "spec", _less_offset),
    "an embedding scaled otherwise": ("gemma3", gemma, "_embedding_scale", _scaled_embedding),
    "biases of another number of heads": ("bloom", bloom, "alibi_slopes", lambda heads: alibi_slopes(8)[:heads]),
    "biases of Falcon a little steeper": (
        "falcon-rw",
        falcon,
        "alibi_slopes",
        lambda heads: tuple(1.02 * slope for slope in alibi_slopes(heads)),
    ),
    "values for keys": ("falcon-7b", qkv, "_grouped", _values_before_keys),
    "norms by head": ("olmo2", QKNorm, "bind", lambda self, spec, ops, device: _by_head(spec, ops)),
}


@pytest.mark.parametrize(("family", "where", "name", "wrong"), FORMULAS.values(), ids=FORMULAS)
def test_a_wrong_formula_is_found(oracle, tmp_path, monkeypatch, family, where, name, wrong):
    monkeypatch.setattr(where, name, wrong)
    found = measured(oracle, tmp_path, family, {})
    assert not found.ok
    assert found.diff > found.bound


def test_the_state_behind_a_rejected_draft_is_found(oracle, monkeypatch):
    """Where a row goes on from the last draft's state, whether it was right or not."""
    right = KVCacheManager.choose_states
    monkeypatch.setattr(KVCacheManager, "choose_states", lambda self, rows, places: right(self, rows, places * 0 + 1))
    folder, answers = oracle("qwen3.5")
    compared, evidence = MODES["drafts"](Subject(folder, PLATFORMS["cpu"], answers[:3], None))
    found = Cell.from_answers(("cpu", "qwen3.5", "drafts"), compared, evidence)
    assert found.evidence
    assert not found.ok


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def answer():
    """Prompt 5 6; 1 2 3 follow. The logits of each position differ by 1, those of the last choice by almost nothing."""
    logits = torch.arange(8.0).repeat(5, 1)
    logits[3, 6] = 7.0 - 5e-5
    return Answer((5, 6), (5, 6, 1, 2, 3), logits)


def computed(answer, **wrong):
    """Its own logits at the four positions that an engine computes; wrong: position4=value to add there."""
    return [
        (position, answer.logits[position] + wrong.get(f"position{position}", 0.0))
        for position in range(len(answer.tokens) - 1)
    ]


def test_the_same_is_ok(answer):
    found = compare(answer, [1, 2, 3], computed(answer))
    assert found.ok
    assert (found.positions, found.missing, found.diff, found.excused) == (4, 0, 0.0, False)
    assert found.bound == pytest.approx(7e-4)


@pytest.mark.parametrize(("off", "ok"), [(6e-4, True), (8e-4, False), (math.nan, False), (math.inf, False)])
def test_the_bound(answer, off, ok):
    assert compare(answer, [1, 2, 3], computed(answer, position2=off)).ok == ok


def test_a_position_that_was_never_computed(answer):
    assert not compare(answer, [1, 2, 3], computed(answer)[:1] + computed(answer)[2:]).ok
    assert not compare(answer, [1, 2, 3], []).ok
    assert compare(answer, [1, 2, 3], computed(answer)[2:], first_position=2).ok


@pytest.mark.parametrize("tokens", [[1, 3, 3], [1, 2], [1, 2, 3, 4], []])
def test_other_tokens(answer, tokens):
    found = compare(answer, tokens, computed(answer))
    assert not found.ok
    assert not found.excused


def test_two_best_within_the_tolerance_are_an_excuse(answer):
    found = compare(answer, [1, 2, 4], computed(answer))
    assert found.excused
    assert found.ok
    assert compare(answer, [1, 2, 4], computed(answer, position3=1.0)).diff == 1.0, "up to there it counts"


def test_few_are_excused(answer):
    plain, excused = (compare(answer, [1, 2, last], computed(answer)) for last in (3, 4))
    assert Cell.from_answers(("p", "f", "m"), [plain] * 49 + [excused], "seen").ok
    assert not Cell.from_answers(("p", "f", "m"), [plain] * 48 + [excused], "seen").ok


def test_a_mode_that_did_nothing_fails(answer):
    plain = compare(answer, [1, 2, 3], computed(answer))
    assert Cell.from_answers(("p", "f", "m"), [plain], "3 preemptions").ok
    assert not Cell.from_answers(("p", "f", "m"), [plain], "").ok


def test_one_bad_prompt_is_what_the_table_shows(answer):
    plain, wrong = (compare(answer, [1, 2, 3], computed(answer, position1=off)) for off in (0.0, math.nan))
    found = Cell.from_answers(("cpu", "llama2", "alone"), [plain, wrong, plain], "seen")
    assert not found.ok
    last = table([found]).splitlines()[-1].split()
    assert last[0] == "cpu"
    assert "nan" in last
    assert last[-1] == "FAILED"


def test_modes_together_are_as_bad_as_the_worst_of_them(answer):
    plain, wrong = (compare(answer, [1, 2, 3], computed(answer, position1=off)) for off in (0.0, 1.0))
    cells = [
        Cell.from_answers((platform, "llama2", mode), compared, "seen")
        for platform, mode, compared in (("cpu", "a", [plain]), ("strict", "a", [plain]), ("cpu", "b", [wrong, plain]))
    ]
    found = by_family(cells)
    assert [(cell.platform, cell.mode, cell.prompts, cell.ok) for cell in found] == [
        ("cpu", "2 modes", 3, False),
        ("strict", "1 modes", 1, True),
    ]
    assert (found[0].diff, found[0].positions, found[0].equal) == (1.0, 12, 3)


def test_the_command_prints_the_table_and_its_exit_code_says_it(capsys):
    small = ["--family", "qwen2", "--platform", "cpu", "--prompts", "1"]
    assert main([*small, "--mode", "alone"]) == 0
    header, line = capsys.readouterr().out.splitlines()[:2]
    assert header.split()[:3] == ["platform", "family", "mode"]
    assert line.split()[:3] == ["cpu", "qwen2", "alone"]
    assert line.endswith("ok")
    assert main([*small, "--mode", "alone", "--brief"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["cpu", "qwen2", "1", "modes"]
    assert main([*small, "--mode", "mixed batch"]) == 1, "one prompt is no mixed batch"
    assert "1 failed" in capsys.readouterr().out
