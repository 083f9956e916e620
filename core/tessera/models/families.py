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


def decoder_config(checkpoint: Checkpoint, max_model_len: int, **differs: Any) -> DecoderConfig:
    """What all families say alike. differs: bias, output_bias, mlp_bias, head_norm, windows (by layer), experts. Raises
    ModelError for what is missing."""
    try:
        hidden, heads, number = (
            int(checkpoint["hidden_size"]),
            int(checkpoint["num_attention_heads"]),
            int(checkpoint["num_hidden_layers"]),
        )
        vocab, inner, eps = (
            int(checkpoint["vocab_size"]),
            int(checkpoint["intermediate_size"]),
            float(checkpoint["rms_norm_eps"]),
        )
    except KeyError as missing:
        raise ModelError(f"config.json lacks {missing}.") from None
    head_dim = int(checkpoint.get("head_dim") or hidden // heads)
    activation = str(checkpoint.get("hidden_act", "silu"))
    if activation not in _ACTIVATIONS:
        raise ModelError(f"activation '{activation}' is not served; {', '.join(_ACTIVATIONS)} are.")
    windows = differs.get("windows", (None,) * number)
    rope = Rope.of(checkpoint, head_dim)
    layers = tuple(
        AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=int(checkpoint.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
            max_positions=max_model_len,
            eps=eps,
            window=window,
            bias=differs.get("bias", False),
            output_bias=differs.get("output_bias", False),
            head_norm=differs.get("head_norm", False),
        )
        for window in windows
    )
    return DecoderConfig(
        architecture=str((checkpoint.get("architectures") or ["?"])[0]),
        vocab=vocab,
        hidden=hidden,
        inner=inner,
        layers=layers,
        activation=_ACTIVATIONS[activation],
        eps=eps,
        max_positions=max_model_len,
        tied=bool(checkpoint.get("tie_word_embeddings", False)),
        mlp_bias=differs.get("mlp_bias", False),
        experts=differs.get("experts"),
    )


def llama(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    bias = bool(checkpoint.get("attention_bias", False))
    mlp_bias = bool(checkpoint.get("mlp_bias", False))
    return Decoder(build, decoder_config(checkpoint, max_model_len, bias=bias, output_bias=bias, mlp_bias=mlp_bias))


def mistral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    return Decoder(build, decoder_config(checkpoint, max_model_len, windows=_everywhere(checkpoint)))


def qwen2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    return Decoder(build, decoder_config(checkpoint, max_model_len, bias=True, windows=_upper_layers(checkpoint)))


def qwen3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    bias = bool(checkpoint.get("attention_bias", False))
    windows = _upper_layers(checkpoint)
    return Decoder(
        build, decoder_config(checkpoint, max_model_len, bias=bias, output_bias=bias, head_norm=True, windows=windows)
    )


def mixtral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    moe = "model.layers.{layer}.block_sparse_moe"
    names = ExpertNames(f"{moe}.gate", *(f"{moe}.experts.{{}}.{w}" for w in ("w1", "w3", "w2")))
    experts = Experts(
        int(checkpoint["num_local_experts"]),
        int(checkpoint["num_experts_per_tok"]),
        int(checkpoint["intermediate_size"]),
        names,
    )
    return Decoder(build, decoder_config(checkpoint, max_model_len, experts=experts, windows=_everywhere(checkpoint)))


def _everywhere(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    window = checkpoint.get("sliding_window")
    return (int(window) if window else None,) * int(checkpoint["num_hidden_layers"])


def _upper_layers(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    """Qwen's rule: with use_sliding_window, the layers from max_window_layers on have it; or layer_types says which."""
    number = int(checkpoint["num_hidden_layers"])
    window = checkpoint.get("sliding_window") if checkpoint.get("use_sliding_window") else None
    if not window:
        return (None,) * number
    kinds = checkpoint.get("layer_types") or [
        "sliding_attention" if i >= int(checkpoint.get("max_window_layers", 0)) else "full_attention"
        for i in range(number)
    ]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
