"""The block of lightning attention: norm and fused input projection, the bound mixer, a norm over all heads, gates and
the output projection. Heads are divided among the ranks; what they return is gathered for the norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.layers.attention import LateWeights, PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear, norm_parameter
from tessera.layers.rotary import Rope
from tessera.ops import SigmoidGateSpec
from tessera.platform.attention import Caches, LayerSpec, StateSpec
from tessera.platform.launch import Launch


@dataclass(frozen=True)
class LightningShape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    head_dim: int
    log_decay: Sequence[float]  # of each head
    eps: float
    max_positions: int
    result_eps: float  # of the norm of the result
    norm_offset: float = 0.0  # of the norm before the block
    name: ClassVar[str] = "self_attn"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(
        self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable
    ) -> LightningAttention:
        """As in BlockShape."""
        return LightningAttention(build, prefix, norm, self)


class LightningAttention:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: LightningShape) -> None:
        first, last = heads = build.shard(shape.heads, "the number of attention heads")
        dim, wide, number = shape.head_dim, shape.heads * shape.head_dim, last - first
        rows, self.n = (first * dim, last * dim), number * dim
        linear = Linear(
            build,
            [
                WeightShard(f"{prefix}.qkv_proj", 3 * wide, shape.hidden, (3 * rows[0], 3 * rows[1])),
                WeightShard(f"{prefix}.output_gate", wide, shape.hidden, rows),
            ],
        )
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        self.output = Linear(build, [WeightShard(f"{prefix}.out_proj", shape.hidden, wide, columns=rows)])
        self.gather, self.columns = build.group.all_gather, slice(*rows)
        spec = Norm(shape.result_eps).spec(wide, build.dtype)
        self.norm, self.norm_weight = build.ops.bind("rms_norm", spec), norm_parameter(build, f"{prefix}.norm", spec)
        self.gate = build.ops.bind("sigmoid_gate", SigmoidGateSpec(self.n, build.dtype, self.n))
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="lightning_attention",
            num_heads=number,
            num_kv_heads=number,
            head_dim=dim,
            scale=1.0,
            dtype=build.dtype,
            cache=StateSpec((("state", (number, dim, dim)),), "float32"),
        )
        weights = LateWeights()
        decays = torch.tensor(shape.log_decay[slice(*heads)], dtype=torch.float32)
        weights["log_decay"] = decays.to(build.device.target)
        self.mixer = build.mixer(self.spec, weights)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        heads, gates = projected.split((3 * self.n, self.n), dim=-1)
        mixed = self.mixer.fused(heads, launch.positions, caches, launch.plans[self.spec.layer])
        normed = self.norm(self.gather(mixed, -1), self.norm_weight.tensor)
        return self.gate(normed[:, self.columns], gates), residual
