"""A model that no family of core is like: full attention, a sliding window, linear attention over state, and an op of
its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, Head
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.mlp import GatedMLP
from tessera.layers.norm import AddNorm, Norm, NormLinear
from tessera.layers.rotary import Rope
from tessera.platform import Op
from tessera.platform.attention import Caches, LayerSpec, StateSpec
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, DIM = 101, 72, 88, 6, 2, 12
WINDOW, EPS, CAP = 10, 1e-6, 1.5
KINDS = ("full", "linear", "window", "linear")


@dataclass(frozen=True)
class SoftenSpec:
    """tanh(x / cap) * cap over [T, n]."""

    n: int
    dtype: str
    cap: float


def soften(spec: SoftenSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    result = torch.tanh(x / spec.cap) * spec.cap
    return result if out is None else out.copy_(result)


SOFTEN: Op[SoftenSpec] = Op("soften", "extra", soften, sample_specs=lambda: iter([SoftenSpec(40, "float32", 1.5)]))


class LinearMixing:
    """As Attention is called, over a StateSpec instead of keys and values."""

    def __init__(self, build: Build, prefix: str, norm: str) -> None:
        sources = [WeightShard(f"{prefix}.{name}_proj", HEADS * DIM, HIDDEN) for name in "qkv"]
        self.input = NormLinear(build, norm, Norm(EPS), Linear(build, sources))
        self.output = Linear(build, [WeightShard(f"{prefix}.o_proj", HIDDEN, HEADS * DIM)])
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="linear_attention",
            num_heads=HEADS,
            num_kv_heads=HEADS,
            head_dim=DIM,
            scale=DIM**-0.5,
            dtype=build.dtype,
            cache=StateSpec((("state", (HEADS, DIM, DIM)),), "float32"),
        )
        self.mixer = build.mixer(self.spec, {})

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        qkv, residual = self.input(x, residual)
        return self.mixer.fused(qkv, launch.positions, caches, launch.plans[self.spec.layer]), residual


class MixedModel:
    def __init__(self, build: Build, max_model_len: int) -> None:
        tables = RotaryTable(build)
        shape = AttentionShape(HIDDEN, HEADS, KV_HEADS, DIM, DIM**-0.5, Rope(DIM), max_model_len, EPS)
        self.embedding = Embedding(build, "embed", VOCAB, HIDDEN)
        self.soften = build.ops.bind("soften", SoftenSpec(HIDDEN, build.dtype, CAP))
        self.mixings: list[Attention | LinearMixing] = []
        self.norms, self.mlps = [], []
        for number, kind in enumerate(KINDS):
            at, norm = f"layers.{number}.mix", f"layers.{number}.mix_norm"
            window = WINDOW if kind == "window" else None
            self.mixings.append(
                LinearMixing(build, at, norm)
                if kind == "linear"
                else Attention(build, at, (norm, Norm(EPS)), replace(shape, window=window), tables)
            )
            self.norms.append(AddNorm(build, f"layers.{number}.mlp_norm", HIDDEN, Norm(EPS)))
            self.mlps.append(GatedMLP(build, f"layers.{number}.mlp", HIDDEN, INNER, "silu"))
        self.norm = AddNorm(build, "norm", HIDDEN, Norm(EPS))
        self.head = Head(build, "head", VOCAB, HIDDEN)
        self.facts = ModelFacts(
            architecture="TinyMixed",
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_layers=len(KINDS),
            max_positions=max_model_len,
            dtype=build.dtype,
            caches=build.caches,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches) -> Hidden:
        residual: Tensor | None = None
        for mixing, norm, mlp in zip(self.mixings, self.norms, self.mlps, strict=True):
            mixed, residual = mixing(x, residual, launch, caches)
            x, residual = norm(mixing.output(mixed), residual)
            x = self.soften(mlp(x))
        return Hidden(launch.select_logits(x), None if residual is None else launch.select_logits(residual))

    def finish(self, hidden: Hidden) -> Tensor:
        return self.norm(hidden.last, hidden.residual)[0]

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows)


def mixed(build: Build, checkpoint: Mapping[str, Any], max_model_len: int) -> MixedModel:
    return MixedModel(build, max_model_len)


def save_mixed(folder: Path) -> Path:
    """A checkpoint with random weights, the same every time."""
    random = torch.Generator().manual_seed(21)

    def weight(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 0.12

    tensors = {"embed": weight(VOCAB, HIDDEN), "head": weight(VOCAB, HIDDEN), "norm": 1 + weight(HIDDEN)}
    for number, kind in enumerate(KINDS):
        at, narrow = f"layers.{number}", (HEADS if kind == "linear" else KV_HEADS) * DIM
        tensors |= {f"{at}.mix_norm": 1 + weight(HIDDEN), f"{at}.mlp_norm": 1 + weight(HIDDEN)}
        tensors |= {f"{at}.mix.q_proj": weight(HEADS * DIM, HIDDEN), f"{at}.mix.o_proj": weight(HIDDEN, HEADS * DIM)}
        tensors |= {f"{at}.mix.{name}_proj": weight(narrow, HIDDEN) for name in "kv"}
        tensors |= {f"{at}.mlp.{name}_proj": weight(INNER, HIDDEN) for name in ("gate", "up")}
        tensors[f"{at}.mlp.down_proj"] = weight(HIDDEN, INNER)
    target = folder / "mixed"
    target.mkdir()
    save_file({f"{name}.weight": tensor for name, tensor in tensors.items()}, target / "model.safetensors")
    config = {"architectures": ["TinyMixed"], "vocab_size": VOCAB, "max_position_embeddings": 256}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target
