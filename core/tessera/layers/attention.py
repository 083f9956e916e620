"""The attention block: norm and fused input projection, the bound mixer, the output projection. Heads are sharded over
the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.linear import Linear, Source
from tessera.layers.norm import NormLinear, norm_slot
from tessera.layers.rotary import Rope, cos_sin
from tessera.layers.weights import Slot
from tessera.platform.attention import Caches, CacheSpec, LayerSpec, Paged, Window
from tessera.platform.launch import Launch
from tessera.platform.ops import NormSpec, RotarySpec


@dataclass(frozen=True)
class AttentionShape:
    """One attention block of a model, all ranks together. window: tokens a query sees; None: all."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope
    max_positions: int
    eps: float
    window: int | None = None
    softcap: float | None = None
    bias: bool = False
    output_bias: bool = False
    head_norm: bool = False


class RotaryTable:
    """cos and sin of one Rope, made once for all layers that use it."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.tables: dict[tuple[Rope, int], Tensor] = {}

    def of(self, rope: Rope, positions: int) -> Tensor:
        key = (rope, positions)
        if key not in self.tables:
            self.tables[key] = cos_sin(rope, positions).to(self.build.device.target)
        return self.tables[key]


class Attention:
    """x, residual -> attended, residual. The result is this rank's partial sum."""

    def __init__(self, build: Build, prefix: str, norm: str, shape: AttentionShape, tables: RotaryTable) -> None:
        q_rows = _heads(build, shape.heads, shape.head_dim, "attention")
        kv_rows = _kv_heads(build, shape.kv_heads, shape.head_dim)
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sharded = build.group.size > 1
        sources = [
            Source(f"{prefix}.q_proj", wide, shape.hidden, q_rows if sharded else None),
            Source(f"{prefix}.k_proj", narrow, shape.hidden, kv_rows if sharded else None),
            Source(f"{prefix}.v_proj", narrow, shape.hidden, kv_rows if sharded else None),
        ]
        self.input = NormLinear(build, norm, shape.eps, Linear(build, sources, bias=shape.bias))
        output = Source(f"{prefix}.o_proj", shape.hidden, wide, columns=q_rows if sharded else None)
        self.output = Linear(build, [output], bias=shape.output_bias)
        head_norm = NormSpec(shape.head_dim, build.dtype, shape.eps) if shape.head_norm else None
        kv_heads = (kv_rows[1] - kv_rows[0]) // shape.head_dim
        cache: CacheSpec = Paged(kv_heads, shape.head_dim, build.dtype)
        if shape.window is not None:
            cache = Window(kv_heads, shape.head_dim, build.dtype, window=shape.window)
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="attention",
            num_heads=(q_rows[1] - q_rows[0]) // shape.head_dim,
            num_kv_heads=kv_heads,
            head_dim=shape.head_dim,
            scale=shape.scale,
            dtype=build.dtype,
            cache=cache,
            rotary=RotarySpec(shape.head_dim, shape.rope.dim),
            q_norm=head_norm,
            k_norm=head_norm,
            window=shape.window,
            softcap=shape.softcap,
        )
        weights = _LateWeights()
        weights["cos_sin"] = tables.of(shape.rope, shape.max_positions)
        if head_norm is not None:
            for name in ("q_norm", "k_norm"):
                weights.slots[name] = norm_slot(build, f"{prefix}.{name}", head_norm)
        self.mixer = build.mixer(self.spec, weights)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        qkv, residual = self.input(x, residual)
        mixed = self.mixer.fused(qkv, launch.positions, caches, launch.plans[self.spec.layer])
        return self.output(mixed), residual


class _LateWeights(dict[str, Tensor]):
    """Weights of a mixer: tables that stand, and slots that are filled when the model is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[str, Slot] = {}

    def __missing__(self, name: str) -> Tensor:
        return self.slots[name].tensor


def _heads(build: Build, heads: int, head_dim: int, kind: str) -> tuple[int, int]:
    start, stop = build.shard(heads, f"the number of {kind} heads")
    return start * head_dim, stop * head_dim


def _kv_heads(build: Build, heads: int, head_dim: int) -> tuple[int, int]:
    """This rank's rows of keys and values; where there are fewer heads than ranks, several ranks have the same one."""
    ranks = build.group.size
    if ranks > heads:
        if ranks % heads:
            raise ModelError(f"the number of key/value heads ({heads}) does not divide --tensor-parallel-size {ranks}.")
        head = build.group.rank * heads // ranks
        return head * head_dim, (head + 1) * head_dim
    return _heads(build, heads, head_dim, "key/value")
