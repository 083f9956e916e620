"""The block of an mLSTM: norm and fused projection, the bound mixer, the output projection. Heads are divided among the
ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tessera.layers.attention import LateWeights, PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear
from tessera.layers.rotary import Rope
from tessera.layers.state_weights import state_weights
from tessera.platform.attention import Caches, LayerSpec, StateSpec
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part


@dataclass(frozen=True)
class MLSTMShape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    key_dim: int  # elements of a head's query, and of its key
    head_dim: int  # of its value
    cap: float  # of the absolute value of what the two gates of the memory are computed from
    eps: float  # of the norms before the block and of its result
    state_eps: float  # what the divisor of a result is at least, beside what it normalizes by
    max_positions: int
    norm_offset: float = 0.0  # as of AttentionShape
    name: ClassVar[str] = "mlstm_layer"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> MLSTM:
        """As in BlockShape."""
        return MLSTM(build, prefix, norm, self)


class MLSTM:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: MLSTMShape) -> None:
        heads = build.shard(shape.heads, "the number of heads of the mLSTM")
        linear = Linear(build, _inputs(prefix, shape, heads))
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        columns = heads[0] * shape.head_dim, heads[1] * shape.head_dim
        output = WeightShard(f"{prefix}.out_proj", shape.hidden, shape.heads * shape.head_dim, columns=columns)
        self.output = Linear(build, [output])
        number = heads[1] - heads[0]
        state = ("state", (number, shape.key_dim, shape.head_dim + 1)), ("largest", (number,))
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="mlstm",
            num_heads=number,
            num_kv_heads=number,
            head_dim=shape.head_dim,
            scale=shape.key_dim**-0.5,
            dtype=build.dtype,
            cache=StateSpec(state, "float32"),
            options=(
                ("key_dim", shape.key_dim),
                ("cap", shape.cap),
                ("eps", shape.eps),
                ("state_eps", shape.state_eps),
            ),
        )
        self.mixer = build.mixer(self.spec, _weights(build, prefix, shape, heads, columns))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        return self.mixer.fused(projected, launch.positions, caches, launch.plans[self.spec.layer]), residual


def _inputs(prefix: str, shape: MLSTMShape, heads: Bounds) -> list[WeightShard]:
    """The mixer adds the biases of the last two."""
    sizes = {
        "q": shape.key_dim,
        "k": shape.key_dim,
        "v": shape.head_dim,
        "ogate_preact": shape.head_dim,
        "igate_preact": 1,
        "fgate_preact": 1,
    }
    return [
        WeightShard(f"{prefix}.{name}", shape.heads * size, shape.hidden, (heads[0] * size, heads[1] * size))
        for name, size in sizes.items()
    ]


def _weights(build: Build, prefix: str, shape: MLSTMShape, heads: Bounds, elements: Bounds) -> LateWeights:
    biases = [Part(f"{prefix}.{name}gate_preact.bias", (shape.heads,), heads) for name in ("i", "f")]
    norm = Part(f"{prefix}.multihead_norm.weight", (shape.heads * shape.head_dim,), elements)
    return state_weights(build, {"gate_bias": biases, "norm": [norm]})
