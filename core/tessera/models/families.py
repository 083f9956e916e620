"""config.json of each family of the decoder to a DecoderConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.layers.mlp import ExpertNames
from tessera.layers.rotary import Rope
from tessera.models.decoder import Decoder, DecoderConfig, Experts

Checkpoint = Mapping[str, Any]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# What transformers takes where a config.json leaves it out: null means null.
_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_MIXTRAL = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6}

_SLIDING, _FULL = "sliding_attention", "full_attention"


def decoder_config(checkpoint: Checkpoint, max_model_len: int, **differs: Any) -> DecoderConfig:
    """What all families say alike. differs: bias, output_bias, mlp_bias, head_norm, windows (by layer), experts. Raises
    ModelError for what is missing or does not hold."""
    hidden, heads = count(checkpoint, "hidden_size"), count(checkpoint, "num_attention_heads")
    kv_heads = count(checkpoint, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads}).")
    head_dim = count(checkpoint, "head_dim", hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise ModelError(f"heads of {head_dim} elements cannot be rotated: head_dim must be even.")
    eps = checkpoint.get("rms_norm_eps")
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise ModelError(f"rms_norm_eps {_fault(eps)} in config.json.")
    activation = str(checkpoint.get("hidden_act", "silu"))
    if activation not in _ACTIVATIONS:
        raise ModelError(f"activation '{activation[:40]}' is not served; {', '.join(_ACTIVATIONS)} are.")
    rope = Rope.of(checkpoint, head_dim)
    layers = tuple(
        AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
            max_positions=max_model_len,
            eps=float(eps),
            window=window,
            bias=differs.get("bias", False),
            output_bias=differs.get("output_bias", False),
            head_norm=differs.get("head_norm", False),
        )
        for window in differs.get("windows") or (None,) * count(checkpoint, "num_hidden_layers")
    )
    return DecoderConfig(
        architecture=str((checkpoint.get("architectures") or ["?"])[0]),
        vocab=count(checkpoint, "vocab_size"),
        hidden=hidden,
        inner=count(checkpoint, "intermediate_size"),
        layers=layers,
        activation=_ACTIVATIONS[activation],
        eps=float(eps),
        max_positions=max_model_len,
        tied=bool(checkpoint.get("tie_word_embeddings", False)),
        mlp_bias=differs.get("mlp_bias", False),
        experts=differs.get("experts"),
    )


def count(checkpoint: Checkpoint, name: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number of config.json. default: where it is left out or null. Raises ModelError."""
    value = checkpoint.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(f"{name} {_fault(value)} in config.json.")
    return value


def _fault(value: object) -> str:
    return "is missing" if value is None else "is not a number that it can have"


def llama(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    bias = bool(checkpoint.get("attention_bias", False))
    mlp_bias = bool(checkpoint.get("mlp_bias", False))
    return Decoder(build, decoder_config(checkpoint, max_model_len, bias=bias, output_bias=bias, mlp_bias=mlp_bias))


def mistral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    checkpoint = {**_MISTRAL, **checkpoint}
    return Decoder(build, decoder_config(checkpoint, max_model_len, windows=_everywhere(checkpoint)))


def qwen2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    checkpoint = {**_QWEN, **checkpoint}
    return Decoder(build, decoder_config(checkpoint, max_model_len, bias=True, windows=_upper_layers(checkpoint)))


def qwen3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    checkpoint = {**_QWEN, "head_dim": 128, **checkpoint}
    bias = bool(checkpoint.get("attention_bias", False))
    windows = _upper_layers(checkpoint)
    return Decoder(
        build, decoder_config(checkpoint, max_model_len, bias=bias, output_bias=bias, head_norm=True, windows=windows)
    )


def mixtral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    checkpoint = {**_MIXTRAL, **checkpoint}
    windows = _everywhere(checkpoint)
    return Decoder(build, decoder_config(checkpoint, max_model_len, experts=_experts(checkpoint), windows=windows))


def _experts(checkpoint: Checkpoint) -> Experts:
    moe = "model.layers.{layer}.block_sparse_moe"
    names = ExpertNames(f"{moe}.gate", *(f"{moe}.experts.{{}}.{w}" for w in ("w1", "w3", "w2")))
    number, top_k = count(checkpoint, "num_local_experts"), count(checkpoint, "num_experts_per_tok")
    if top_k > number:
        raise ModelError(f"num_experts_per_tok ({top_k}) is more than num_local_experts ({number}).")
    return Experts(number, top_k, count(checkpoint, "intermediate_size"), names)


# ---- windows ---------------------------------------------------------------------------------------------------------


def _everywhere(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    window = None if checkpoint.get("sliding_window") is None else count(checkpoint, "sliding_window")
    return (window,) * count(checkpoint, "num_hidden_layers")


def _upper_layers(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    """Qwen's rule: with use_sliding_window, the layers from max_window_layers on have it; or layer_types says which."""
    number = count(checkpoint, "num_hidden_layers")
    if not checkpoint.get("use_sliding_window") or checkpoint.get("sliding_window") is None:
        return (None,) * number
    window, first = count(checkpoint, "sliding_window"), count(checkpoint, "max_window_layers", least=0)
    kinds = checkpoint.get("layer_types")
    if kinds is None:
        return tuple(window if layer >= first else None for layer in range(number))
    if not isinstance(kinds, list) or len(kinds) != number or any(kind not in (_SLIDING, _FULL) for kind in kinds):
        raise ModelError(f"layer_types in config.json must say {_SLIDING} or {_FULL} for each of {number} layers.")
    return tuple(window if kind == _SLIDING else None for kind in kinds)
