"""Writes a model of transformers as a GGUF file, as llama.cpp's converters do: with the gguf package, its table of
names and its quantizer. What the converters change of the weights is stated here once more, apart from the code under
test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from tests.models.gguf.conversions import converted, write_own_settings

PAIRED = ("llama", "mistral3", "granite", "granitehybrid", "granitemoe", "smollm3", "arcee")
"""Architectures whose queries and keys are rotated in neighbouring pairs."""
OFFSET = ("gemma", "gemma2", "gemma3", "nemotron")
"""Architectures whose norms multiply by 1 + weight in transformers, and by the weight in llama.cpp."""
_ARCHITECTURES = {"mixtral": "llama", "mistral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
_ARCHITECTURES |= {"qwen2_vl_text": "qwen2vl", "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl"}
_ARCHITECTURES |= {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
_ARCHITECTURES |= {"lfm2_moe": "lfm2moe", "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe", "minimax_m2": "minimax-m2"}
_ARCHITECTURES |= {"ernie4_5_moe": "ernie4_5-moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2"}
_ARCHITECTURES |= {
    "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
}
_ARCHITECTURES |= {"ministral3": "mistral3", "qwen2_moe": "qwen2moe", "cohere": "command-r"}
_ARCHITECTURES |= {"llama4_text": "llama4", "olmo3": "olmo2"}
_ARCHITECTURES |= {"hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe"}
_ARCHITECTURES |= {"falcon_h1": "falcon-h1", "falcon_mamba": "mamba"}
_EXPERTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def write_gguf(
    model: Any,
    path: Path,
    kind: Type = Type.F32,
    other: Mapping[str, Type] | None = None,
    metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    name: str = "",
) -> Path:
    """kind: of the matrices whose rows divide by its blocks; the others are float32. other: another kind, by GGUF's
    name of a tensor within its layer, such as attn_v. metadata: called to add keys. name: GGUF's of the architecture,
    where a type of transformers has several."""
    config = model.config
    config.allow_global_per_layer_attribute_access = True  # of types whose layers are of unlike sizes
    name = name or _ARCHITECTURES.get(config.model_type, config.model_type)
    if name == "nemotron_h" and "moe" in config.layers_block_type:
        name = "nemotron_h_moe"
    architecture = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    writer = gguf.GGUFWriter(path, name)
    if hasattr(config, "num_attention_heads"):
        _write_settings(writer, config, name)
    write_own_settings(writer, config, name)
    metadata(writer)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    state = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight" or not _tied(model)}
    for key, value in _stacked(converted(state, config, name)).items():
        own = key if key.startswith("blk.") else names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert own is not None, key
        write_tensor(writer, own, _changed(value, own, config, name), (other or {}).get(own.split(".")[-2], kind))
    for own, factors in _rope_factors(config).items():
        writer.add_tensor(own, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def _write_settings(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = _rope(config)
    full = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.moe_intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    mean = (getattr(config, key, None) for key in ("layer_norm_eps", "norm_epsilon"))
    if (eps := next((one for one in mean if one), config.norm_eps if name == "nemotron" else None)) is not None:
        writer.add_layer_norm_eps(eps)
    else:
        writer.add_layer_norm_rms_eps(
            getattr(config, "norm_eps", None) or getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon
        )
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    if full["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    if full["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if "sliding_attention" in rope:
        writer.add_float32(f"{name}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    if name in ("gemma2", "gemma3", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if "mrope_section" in full:
        writer.add_rope_dimension_sections([*full["mrope_section"], 0])
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if name in ("granite", "granitemoe"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if (experts := getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)) is not None:
        writer.add_expert_count(experts)
        used = (getattr(config, key, None) for key in ("top_k_experts", "moe_topk", "num_experts_per_tok"))
        writer.add_expert_used_count(next(number for number in used if number))
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))


def _stacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With transformers' stacks of experts, [E, 2 n, k] gate and up and [E, k, n] down, as one stack a projection."""
    stacked: dict[str, Tensor] = {}
    for key, value in state.items():
        before, found, _ = key.partition(".experts.gate_up_proj")
        if found:
            gate, up = value.chunk(2, dim=1)
            stacked |= {f"{before}.experts.gate_proj.weight": gate, f"{before}.experts.up_proj.weight": up}
        elif key.endswith(".experts.down_proj"):
            stacked[f"{key}.weight"] = value
        else:
            stacked[key] = value
    return stacked


def _changed(value: Tensor, own: str, config: Any, name: str) -> np.ndarray:
    array = value.detach().to(torch.float32).numpy()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    layer_name = own.split(".")[-2]
    if name in PAIRED and layer_name in heads:
        count = heads[layer_name]
        halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
        array = halves.swapaxes(1, 2).reshape(array.shape)
    if name in OFFSET and own.endswith("norm.weight"):
        array = array + 1
    return np.ascontiguousarray(array)


def write_tensor(writer: gguf.GGUFWriter, own: str, array: np.ndarray, kind: Type) -> None:
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if array.ndim < 2 or array.shape[-1] % block or kind == Type.F32:
        writer.add_tensor(own, array)
    else:
        writer.add_tensor(own, gguf.quants.quantize(array, kind), raw_dtype=kind)


def _rope(config: Any) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 1e4}


def _rope_factors(config: Any) -> dict[str, Any]:
    rope = _rope(config)
    if rope.get("rope_type") == "longrope":
        return {"rope_factors_long.weight": rope["long_factor"], "rope_factors_short.weight": rope["short_factor"]}
    if rope.get("full_attention", rope).get("rope_type") == "proportional":
        width = config.per_layer_config["full_attention"].head_dim
        pairs, turned = width // 2, int(width * rope["full_attention"]["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": [1.0] * turned + [1e30] * (pairs - turned)}
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original, factors = rope["original_max_position_embeddings"], []
    for wavelength in 2 * np.pi / frequencies:
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": factors}
