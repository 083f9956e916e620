"""MiniMax: most layers are lightning attention, the others attention; all have experts. What is added to a block's
result is the block's normed input, times a factor (MiniMax-01, arXiv:2501.08313).

norm(a h + b y) = norm(h + (b / a) y), with a smaller eps: the next norm takes the place of both factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.lightning import LightningShape
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.rotary import Rope
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import MIXTRAL_NAMES, read_experts
from tessera.models.reading import FULL, read_attention, read_decoder, read_head_dim, sliding_window
from tessera.models.rope import RopeReader
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MINIMAX: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
LINEAR = "linear_attention"
_RESULT_EPS = 1e-6  # of the norm of what lightning attention returns


class MiniMaxBlock:
    """h = norm(x); then g = norm(h + attention(h)), and g + mlp(g), with factors. norms: the norms of both."""

    def __init__(
        self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable, norms: tuple[Norm, Norm]
    ) -> None:
        prefix, names, hidden = f"{config.names.layers}.{number}", config.names, config.hidden
        shape = config.layers[number]
        self.norm = AddNorm(build, f"{prefix}.{names.attention_norm}", hidden, norms[0])
        self.attention = shape.block(build, f"{prefix}.{shape.name}", None, tables)
        self.mlp = mlp_of(build, config, number)
        self.mlp_norm = AddNorm(build, f"{prefix}.{names.mlp_norm}", hidden, norms[1])

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, _ = self.norm(x, residual)
        return self.attention(normed, None, launch, caches)[0], normed

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, normed = states
        normed, _ = self.mlp_norm(self.attention.output(mixed), normed)
        return self.mlp(normed), normed


def minimax(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MINIMAX)
    if fields.activation("hidden_act", "silu") != "silu":
        raise ModelError("a hidden_act other than silu is not supported with lightning attention.")
    attention, kinds = _attention(fields, max_model_len), _kinds(fields)
    layers = [attention if kind == FULL else _lightning(fields, attention, n) for n, kind in enumerate(kinds)]
    factors = {kind: _factors(fields, name) for kind, name in ((FULL, "full_attn"), (LINEAR, "linear_attn"))}
    behind_mlp = _norm(attention.eps, _factors(fields, "mlp"))

    def block(build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> MiniMaxBlock:
        before = behind_mlp if number else Norm(attention.eps)
        return MiniMaxBlock(build, config, number, tables, (before, _norm(attention.eps, factors[kinds[number]])))

    experts = read_experts(fields, "num_local_experts", MIXTRAL_NAMES, fields.count("intermediate_size"))
    config = read_decoder(
        fields, layers, experts=experts, eps=behind_mlp.eps, residual_multiplier=behind_mlp.multiplier
    )
    return build_decoder(build, config, block)


def _factors(fields: ConfigFields, name: str) -> tuple[float, float]:
    """Of what is added to the result, and of the result."""
    return fields.multiplier(f"{name}_alpha_factor", 1.0), fields.multiplier(f"{name}_beta_factor", 1.0)


def _norm(eps: float, factors: tuple[float, float]) -> Norm:
    added, result = factors
    return Norm(eps / added**2, multiplier=result / added)


def _kinds(fields: ConfigFields) -> Sequence[str]:
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in (LINEAR, FULL), f"{LINEAR} or {FULL}")
    return [LINEAR if layer % 2 else FULL for layer in range(number)] if kinds is None else kinds


def _attention(fields: ConfigFields, max_model_len: int) -> AttentionShape:
    """transformers rotates all of a head."""
    rope = read_turned_part(fields, max_model_len)
    return read_attention(fields, max_model_len, rope=rope, window=sliding_window(fields))


def read_turned_part(fields: ConfigFields, max_model_len: int) -> Rope:
    """The rotary embedding of rotary_dim elements of a head, or of all."""
    head_dim = read_head_dim(fields)
    turned = fields.count("rotary_dim", head_dim)
    partial = ConfigFields({"partial_rotary_factor": turned / head_dim, **fields.values})
    return RopeReader(partial, head_dim, max_model_len, partial=True).read()


def _lightning(fields: ConfigFields, attention: AttentionShape, number: int) -> BlockShape:
    """A head's decay is that of a slope of linear biases (ALiBi), which falls to almost none in the last layer."""
    heads, layers = attention.heads, fields.count("num_hidden_layers")
    factor = 1 - number / (layers - 1 + 1e-5) + 1e-5
    return LightningShape(
        hidden=attention.hidden,
        heads=heads,
        head_dim=attention.head_dim,
        log_decay=tuple(-factor * 2 ** (-8 * (head + 1) / heads) for head in range(heads)),
        eps=attention.eps,
        max_positions=attention.max_positions,
        result_eps=_RESULT_EPS,
    )
