"""Falcon-H1: each layer has attention and a Mamba 2 beside each other, then a gated MLP; and multipliers nearly
everywhere (Falcon-H1, arXiv:2507.22448).

No weight is multiplied, so that quantized ones and adapters need not know of them. What multiplies queries, keys and
values is in the scale of the scores and in what multiplies attention's result; what multiplies a gate is in the MLP's
input and taken back behind it; what multiplies a sum is where the next norm adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.mamba2 import Mamba2Shape
from tessera.layers.norm import AddNorm, Norm
from tessera.models.decoder import Decoder, DecoderConfig, DecoderNames, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.granite_hybrid import read_mamba2
from tessera.models.reading import read_attention, read_biases, read_decoder, read_head_dim, repeated
from tessera.ops import AddSpec, SoftCapSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_FALCON_H1: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_norm_before_gate": True,
}
_NAMES = DecoderNames(norm="model.final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")


@dataclass(frozen=True)
class Multipliers:
    """Of a layer, as config.json has them."""

    attention_in: float  # of attention's input
    attention_out: float  # of its result
    key: float  # of keys
    ssm_in: float  # of Mamba 2's input
    ssm_out: float  # of its result
    gate: float  # of the gate of the MLP
    down: float  # of the MLP's result

    @property
    def attention(self) -> float:
        """Of attention's result, where that of Mamba 2 has none: the sum of both is multiplied by ssm_out."""
        return self.attention_in * self.attention_out / self.ssm_out


class Scale:
    """Multiplies [T, n] by a number."""

    def __init__(self, build: Build, n: int, multiplier: float) -> None:
        self.call: Callable[[Tensor], Tensor] = _as_it_is
        if multiplier != 1.0:
            self.call = build.ops.bind("soft_cap", SoftCapSpec(n, build.dtype, scale=multiplier))

    def __call__(self, x: Tensor) -> Tensor:
        return self.call(x)


def _as_it_is(x: Tensor) -> Tensor:
    return x


class HybridBlock:
    """x + attention(norm(x)) + mamba(norm(x)), and then the MLP."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        mamba: Mamba2Shape,
        multipliers: Multipliers,
    ) -> None:
        prefix, names, hidden = f"{config.names.layers}.{number}", config.names, config.hidden
        norm = Norm(config.eps, multiplier=config.residual_multiplier)
        self.norm = AddNorm(build, f"{prefix}.{names.attention_norm}", hidden, norm)
        shape = config.layers[number]
        self.attention = shape.block(build, f"{prefix}.{shape.name}", None, tables)
        self.mamba = mamba.block(build, f"{prefix}.{mamba.name}", None, tables)
        self.scale = Scale(build, hidden, multipliers.attention)
        self.add = build.ops.bind("add", AddSpec(hidden, build.dtype))
        self.mlp = mlp_of(build, config, number)
        norm = Norm(config.eps, multiplier=multipliers.ssm_out)
        self.mlp_norm = AddNorm(build, f"{prefix}.{names.mlp_norm}", hidden, norm)
        self.mlp_scale = Scale(build, hidden, multipliers.gate)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.norm(x, residual)
        attended, _ = self.attention(normed, residual, launch, caches)
        scanned, _ = self.mamba(normed, residual, launch, caches)
        return attended, scanned, residual

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        attended, scanned, residual = states
        both = self.add(self.scale(self.attention.output(attended)), self.mamba.output(scanned))
        normed, residual = self.mlp_norm(both, residual)
        return self.mlp(self.mlp_scale(normed)), residual


def falcon_h1(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _FALCON_H1)
    multipliers = _multipliers(fields)
    scale = read_head_dim(fields) ** -0.5 * multipliers.key * multipliers.attention_in**2
    attention = read_attention(fields, max_model_len, scale=scale, **read_biases(fields))
    inner = None if fields.get("mamba_d_ssm") is None else fields.count("mamba_d_ssm")
    zones = [multipliers.ssm_in * one for one in _listed(fields, "ssm_multipliers", 5)]
    mamba = read_mamba2(
        fields,
        attention,
        inner,
        output_bias=fields.flag("projectors_bias"),
        normed=fields.flag("mamba_rms_norm"),
        gate_first=not fields.flag("mamba_norm_before_gate"),
        multipliers=tuple(zones),
    )
    config = read_decoder(
        fields,
        repeated(fields, attention),
        mlp_bias=fields.flag("mlp_bias"),
        names=_NAMES,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=multipliers.down / multipliers.gate,
        logits_scale=fields.multiplier("lm_head_multiplier", 1.0),
    )
    return build_decoder(build, config, partial(HybridBlock, mamba=mamba, multipliers=multipliers))


def _multipliers(fields: ConfigFields) -> Multipliers:
    gate, down = _listed(fields, "mlp_multipliers", 2)
    one = {name: fields.multiplier(f"{name}_multiplier", 1.0) for name in _SINGLE}
    for name, multiplier, bias in (
        ("attention_in_multiplier", one["attention_in"], "attention_bias"),
        ("ssm_in_multiplier", one["ssm_in"], "mamba_proj_bias"),
        ("mlp_multipliers", gate, "mlp_bias"),
    ):
        if multiplier != 1.0 and fields.flag(bias):
            raise ModelError(f"{bias} is not supported with {name} in config.json.")
    return Multipliers(**one, gate=gate, down=down)


_SINGLE = ("attention_in", "attention_out", "key", "ssm_in", "ssm_out")
"""Multipliers that have a field each."""


def _listed(fields: ConfigFields, name: str, number: int) -> Sequence[float]:
    """A list of `number` numbers above 0, which are 1 where it is omitted or null."""
    said = [1.0] * number if fields.get(name) is None else fields.get(name)
    if not isinstance(said, list) or len(said) != number:
        raise ModelError(f"{name} in config.json is not a list of {number} numbers.")
    return [ConfigFields({name: one}).multiplier(name) for one in said]
