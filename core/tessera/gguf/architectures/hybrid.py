"""Models that have Mamba and attention: Nemotron-H, Falcon-H1 and Jamba."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import ATTENTION, ENDS, GgufArchitecture, Names, Settings
from tessera.gguf.architectures.mamba import BACKBONE, mamba2_changes, mamba2_names, mamba_changes, mamba_names
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

_MIXER = "mixer"
_NEMOTRON_H: Names = {
    **{own: name.replace("self_attn", _MIXER) for own, name in ATTENTION.items()},
    "attn_norm": "norm",
    **mamba2_names(_MIXER),
    "ffn_up": f"{_MIXER}.up_proj",
    "ffn_down": f"{_MIXER}.down_proj",
}
_NEMOTRON_H_MOE: Names = {
    **_NEMOTRON_H,
    "ffn_gate_inp": f"{_MIXER}.gate",
    "exp_probs_b.bias": f"{_MIXER}.gate.e_score_correction_bias",
    "ffn_latent_down": f"{_MIXER}.fc1_latent_proj",
    "ffn_latent_up": f"{_MIXER}.fc2_latent_proj",
    **{f"ffn_{part}_exps": f"{_MIXER}.experts.{{}}.{part}_proj" for part in ("up", "down")},
    **{f"ffn_{part}_shexp": f"{_MIXER}.shared_experts.{part}_proj" for part in ("up", "down")},
}
_KINDS: Mapping[str, str] = {
    "ssm_in": "mamba",
    "attn_q": "attention",
    "ffn_gate_inp": "moe",
    "ffn_up": "mlp",
}
"""By a tensor that layers of the kind alone have."""
_MLP = "feed_forward"
_DENSE: Names = {
    "ffn_norm": "pre_ff_layernorm",
    **{f"ffn_{part}": f"{_MLP}.{part}_proj" for part in ("gate", "up", "down")},
}
_FALCON_H1: Names = {
    **ATTENTION,
    **mamba2_names("mamba"),
    **_DENSE,
    "ffn_norm": "pre_ff_layernorm.weight",  # llama.cpp's name has no ending
}
_JAMBA: Names = {
    **ATTENTION,
    **mamba_names("mamba"),
    **{f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")},
    **_DENSE,
    "ffn_gate_inp": f"{_MLP}.router",
    **{f"ffn_{part}_exps": f"{_MLP}.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
}
_FINAL_NORM: Names = {**ENDS, "output_norm.weight": "model.final_layernorm.weight"}


def _has(file: GgufFile, *tensors: str) -> bool:
    """Whether one of the layers has one of them."""
    return any(name.endswith(tuple(f".{tensor}" for tensor in tensors)) for name in file.tensors)


def _nemotron_h(fields: GgufFields, file: GgufFile) -> Settings:
    inner, heads = fields.count("ssm.inner_size"), fields.count("ssm.time_step_rank")
    return {
        "layers_block_type": [_kind(layer, fields, file) for layer in range(fields.num_layers)],
        "layer_norm_epsilon": fields.epsilon,
        "mlp_hidden_act": "relu2",
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": fields.count("ssm.group_count"),
        "ssm_state_size": fields.count("ssm.state_size"),
        "conv_kernel": fields.count("ssm.conv_kernel"),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
        "use_bias": _has(file, "ssm_in.bias"),
        "mlp_bias": _has(file, "ffn_up.bias", "ffn_up_shexp.bias"),
        "attention_bias": _has(file, "attn_q.bias"),
    }


def _kind(layer: int, fields: GgufFields, file: GgufFile) -> str:
    own = (kind for tensor, kind in _KINDS.items() if f"blk.{layer}.{tensor}.weight" in file.tensors)
    kind = next(own, None)
    if kind is None:
        raise ModelError(f"the GGUF file has nothing in layer {layer} of {fields.num_layers}; it is not whole.")
    return kind


def _nemotron_h_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_nemotron_h(fields, file),
        "n_routed_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "n_shared_experts": fields.count("expert_shared_count", 1),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length"),
        "moe_latent_size": fields.count_if_any("moe_latent_size") or None,
        "norm_topk_prob": bool(fields.get("expert_weights_norm")),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        "n_group": fields.count("expert_group_count", 1),
        "topk_group": fields.count("expert_group_used_count", 1),
    }


def _falcon_h1(fields: GgufFields, file: GgufFile) -> Settings:
    """Its multipliers are in the file's weights."""
    inner, heads = fields.count("ssm.inner_size"), fields.count("ssm.time_step_rank")
    single = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    return {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": fields.count("ssm.group_count"),
        "mamba_d_state": fields.count("ssm.state_size"),
        "mamba_d_conv": fields.count("ssm.conv_kernel"),
        "mamba_rms_norm": _has(file, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(file, "ssm_in.bias"),
        "projectors_bias": _has(file, "ssm_out.bias"),
        "attention_bias": _has(file, "attn_q.bias"),
        "mlp_bias": _has(file, "ffn_up.bias"),
        **{f"{name}_multiplier": 1.0 for name in single},
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


def _jamba(fields: GgufFields, file: GgufFile) -> Settings:
    layers = range(fields.num_layers)
    experts = [f"blk.{layer}.ffn_gate_inp.weight" in file.tensors for layer in layers]
    return {
        **_periods("attn_layer", [f"blk.{layer}.attn_q.weight" in file.tensors for layer in layers]),
        **_periods("expert_layer", experts),
        "num_experts": fields.count("expert_count") if any(experts) else 1,
        "num_experts_per_tok": fields.count("expert_used_count") if any(experts) else 1,
        "mamba_d_state": fields.count("ssm.state_size"),
        "mamba_d_conv": fields.count("ssm.conv_kernel"),
        "mamba_expand": fields.count("ssm.inner_size") // fields.count("embedding_length"),
        "mamba_dt_rank": fields.count("ssm.time_step_rank"),
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(file, "ssm_in.bias"),
    }


def _periods(name: str, kinds: Sequence[bool]) -> Settings:
    """kinds: which layers are of the kind. Raises ModelError for some that do not recur."""
    places = [place for place, one in enumerate(kinds) if one]
    first = places[0] if places else len(kinds)
    period = places[1] - first if len(places) > 1 else len(kinds) + 1
    if first >= period or list(kinds) != [place % period == first for place in range(len(kinds))]:
        raise ModelError(f"the GGUF file has a pattern of layers ({name}) that models of its architecture have not.")
    return {f"{name}_period": period, f"{name}_offset": first}


def _nemotron(names: Names, settings: Callable[[GgufFields, GgufFile], Settings]) -> GgufArchitecture:
    return GgufArchitecture(
        "NemotronHForCausalLM",
        "nemotron_h",
        names,
        settings,
        changes=mamba2_changes,
        ends=BACKBONE,
        layers="backbone.layers",
    )


HYBRID: Mapping[str, GgufArchitecture] = {
    "nemotron_h": _nemotron(_NEMOTRON_H, _nemotron_h),
    "nemotron_h_moe": _nemotron(_NEMOTRON_H_MOE, _nemotron_h_moe),
    "falcon-h1": GgufArchitecture(
        "FalconH1ForCausalLM", "falcon_h1", _FALCON_H1, _falcon_h1, changes=mamba2_changes, ends=_FINAL_NORM
    ),
    "jamba": GgufArchitecture("JambaForCausalLM", "jamba", _JAMBA, _jamba, changes=mamba_changes, ends=_FINAL_NORM),
}
"""By general.architecture."""
