"""config.json as the settings of a GGUF file, for architectures whose tensors have the same numbers in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError, printable
from tessera.gguf.rope import llama3_factors

Metadata = dict[str, Any]
"""Of a GGUF file, by key: str, bool, int (unsigned) or float, both of 32 bits, or a list of these (ints are signed)."""


@dataclass(frozen=True)
class Settings:
    """What a model's config.json becomes."""

    # general.architecture
    architecture: str
    # by key
    metadata: Metadata
    # tensors that the settings imply, by name: a float for each wavelength
    factors: Mapping[str, list[float]]


def refuse_class(name: str) -> None:
    """Raises ModelError for a class of transformers that is not written."""
    if name not in WRITTEN:
        raise ModelError(
            f"{printable(name, 60)} is not written as a GGUF file; written are {', '.join(sorted(WRITTEN))}."
        )


def settings_of(config: Mapping[str, Any]) -> Settings:
    """config: of config.json, with all that transformers takes for what that does not say
    (loader/complete_config.py), of a class of WRITTEN. Raises ModelError for a rotary scaling that a file cannot
    say."""
    architecture, own = WRITTEN[config["architectures"][0]]
    said, factors = _rope(config)
    metadata = {**_sizes(config), **said, **own(config)}
    return Settings(architecture, {f"{architecture}.{key}": value for key, value in metadata.items()}, factors)


def _sizes(config: Mapping[str, Any]) -> Metadata:
    heads, width = config["num_attention_heads"], config["head_dim"]
    sizes = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "attention.key_length": width,
        "attention.value_length": width,
    }
    if (epsilon := config.get("rms_norm_eps")) is not None:
        return {**sizes, "attention.layer_norm_rms_epsilon": float(epsilon)}
    epsilon = next(config[key] for key in ("layer_norm_eps", "norm_epsilon", "norm_eps") if config.get(key) is not None)
    return {**sizes, "attention.layer_norm_epsilon": float(epsilon)}


def _rope(config: Mapping[str, Any]) -> tuple[Metadata, Mapping[str, list[float]]]:
    """Keys of the rotary embedding, and the tensors of factors."""
    rope = config["rope_parameters"]
    said: Metadata = {}
    if "full_attention" in rope:
        said["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        if rope["sliding_attention"]["rope_type"] != "default":
            raise ModelError("layers with windows have a rotary scaling, which a GGUF file cannot say.")
        rope = rope["full_attention"]
    kind, theta = rope.get("rope_type", "default"), float(rope["rope_theta"])
    turned = int(config["head_dim"] * rope.get("partial_rotary_factor", 1.0))
    said |= {"rope.freq_base": theta, "rope.dimension_count": turned}
    match kind:
        case "default":
            return said, {}
        case "linear":
            return {**said, "rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}, {}
        case "llama3":
            return said, {"rope_freqs.weight": llama3_factors(turned // 2, theta, float(rope["factor"])).tolist()}
        case "yarn":
            original = rope["original_max_position_embeddings"]
            scaling = {"type": "yarn", "factor": float(rope["factor"]), "original_context_length": original}
            betas = {f"yarn_{name}": float(rope[name]) for name in ("beta_fast", "beta_slow") if rope.get(name)}
            return {**said, **{f"rope.scaling.{key}": value for key, value in (scaling | betas).items()}}, {}
        case "longrope":
            return {
                **said,
                "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                "rope.scaling.attn_factor": float(rope["attention_factor"]),
            }, {
                f"rope_factors_{length}.weight": [*map(float, rope[f"{length}_factor"])] for length in ("long", "short")
            }
    raise ModelError(f"a GGUF file cannot say the rotary scaling '{printable(str(kind), 40)}'.")


# ---- what some architectures say beside this


def _nothing(config: Mapping[str, Any]) -> Metadata:
    return {}


def _window(config: Mapping[str, Any]) -> Metadata:
    window = config.get("sliding_window")
    return {"attention.sliding_window": window} if window else {}


def _gemma2(config: Mapping[str, Any]) -> Metadata:
    return {
        **_window(config),
        "attn_logit_softcapping": float(config["attn_logit_softcapping"]),
        "final_logit_softcapping": float(config["final_logit_softcapping"]),
    }


def _gemma3(config: Mapping[str, Any]) -> Metadata:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    return {**_window(config), "attention.sliding_window_pattern": slides}


def _granite(config: Mapping[str, Any]) -> Metadata:
    return {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def _experts(config: Mapping[str, Any]) -> Metadata:
    count = config.get("num_experts") or config["num_local_experts"]
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    return {
        "expert_count": count,
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": width,
    }


WRITTEN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Metadata]]] = MappingProxyType(
    {
        "LlamaForCausalLM": ("llama", _nothing),
        "MistralForCausalLM": ("llama", _nothing),
        "MixtralForCausalLM": ("llama", _experts),
        "Qwen2ForCausalLM": ("qwen2", _nothing),
        "Qwen3ForCausalLM": ("qwen3", _nothing),
        "Qwen3MoeForCausalLM": ("qwen3moe", _experts),
        "GemmaForCausalLM": ("gemma", _nothing),
        "Gemma2ForCausalLM": ("gemma2", _gemma2),
        "Gemma3ForCausalLM": ("gemma3", _gemma3),
        "Phi3ForCausalLM": ("phi3", _window),
        "GraniteForCausalLM": ("granite", _granite),
        "SmolLM3ForCausalLM": ("smollm3", _nothing),
        "Olmo2ForCausalLM": ("olmo2", _nothing),
    }
)
"""By transformers' class: general.architecture, and the keys that it has beside those of all."""
