"""A model of layers that see a whole text, alone or beside layers with a cache, and what it computes, written down
plainly. It has a head, so that engines that only generate can be asked for the token behind a text.

Call extensions() of this module as a plugin; torch is imported when a model is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, Head
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.rotary import Rope
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM = 101, 40, 6, 2, 16
EPS, WINDOW, REACH = 1e-6, 4, 9


class EncoderModel:
    """Its kinds of layers are those of config.json: "whole" texts, a "window" on both sides, "biased" by distance, or
    "causal" with keys and values in a cache."""

    pooling: Mapping[str, Any] = {}

    def __init__(self, build: Build, kinds: Sequence[str], max_model_len: int) -> None:
        tables = RotaryTable(build)
        shape = AttentionShape(HIDDEN, HEADS, KV_HEADS, DIM, DIM**-0.5, Rope(DIM), max_model_len, EPS, causal=False)
        shapes = {
            "whole": shape,
            "window": replace(shape, window=WINDOW),
            "biased": replace(shape, rope=None, relative_reach=REACH),
            "causal": replace(shape, causal=True),
        }
        self.embedding = Embedding(build, "embed", VOCAB, HIDDEN)
        self.layers = [
            Attention(
                build, f"layers.{number}", (f"layers.{number}.norm", Norm(EPS)), shapes[kind], tables,
                relative_bias=relative_bias() if kind == "biased" else None,
            )
            for number, kind in enumerate(kinds)
        ]  # fmt: skip
        self.norm = AddNorm(build, "norm", HIDDEN, Norm(EPS))
        self.head = Head(build, "head", VOCAB, HIDDEN)
        self.facts = ModelFacts(
            architecture="TinyEncoder",
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_layers=len(kinds),
            max_positions=max_model_len,
            dtype=build.dtype,
            caches=build.caches,
            chunkable=False,
            prefix_cacheable=False,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches) -> Hidden:
        residual: Tensor | None = None
        for layer in self.layers:
            mixed, residual = layer(x, residual, launch, caches)
            x = layer.output(mixed)
        assert residual is not None
        return Hidden(launch.select_logits(x), launch.select_logits(residual))

    def finish(self, hidden: Hidden) -> Tensor:
        return self.norm(hidden.last, hidden.residual)[0]

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows)


def relative_bias() -> Tensor:
    return torch.randn(HEADS, 2 * REACH - 1, generator=torch.Generator().manual_seed(8)) * 3


def encoder(build: Build, checkpoint: Mapping[str, Any], max_model_len: int) -> EncoderModel:
    return EncoderModel(build, checkpoint["kinds"], max_model_len)


def save_encoder(folder: Path, kinds: Sequence[str]) -> Path:
    """A checkpoint with random weights, the same every time."""
    random = torch.Generator().manual_seed(23)

    def weight(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 0.3

    tensors = {"embed": weight(VOCAB, HIDDEN), "head": weight(VOCAB, HIDDEN), "norm": 1 + weight(HIDDEN)}
    for number in range(len(kinds)):
        at = f"layers.{number}"
        tensors |= {f"{at}.norm": 1 + weight(HIDDEN), f"{at}.q_proj": weight(HEADS * DIM, HIDDEN)}
        tensors |= {f"{at}.{name}_proj": weight(KV_HEADS * DIM, HIDDEN) for name in "kv"}
        tensors[f"{at}.o_proj"] = weight(HIDDEN, HEADS * DIM)
    target = folder / "-".join(kinds)
    target.mkdir()
    save_file({f"{name}.weight": tensor for name, tensor in tensors.items()}, target / "model.safetensors")
    config = {"architectures": ["TinyEncoder"], "vocab_size": VOCAB, "max_position_embeddings": 64, "kinds": [*kinds]}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


class EncoderOracle:
    """One text at a time, by no op and no layer of core."""

    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.kinds = json.loads((folder / "config.json").read_text(encoding="utf-8"))["kinds"]

    def next_token(self, text: Sequence[int]) -> int:
        x = self.weights["embed.weight"][torch.tensor(text)]
        for number, kind in enumerate(self.kinds):
            at = f"layers.{number}"
            h = self._norm(x, f"{at}.norm")
            q, k, v = ((h @ self.weights[f"{at}.{name}_proj.weight"].T).unflatten(1, (-1, DIM)) for name in "qkv")
            x = x + self._mixed(kind, q, k, v).flatten(1) @ self.weights[f"{at}.o_proj.weight"].T
        return int((self._norm(x[-1], "norm") @ self.weights["head.weight"].T).argmax())

    def _mixed(self, kind: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind != "biased":
            q, k = (self._rotated(heads) for heads in (q, k))
        token = torch.arange(len(q))
        distance = token[None, :] - token[:, None]
        mask = torch.zeros(HEADS, len(q), len(q))
        if kind == "biased":
            mask += relative_bias()[:, distance.clamp(1 - REACH, REACH - 1) + REACH - 1]
        if kind == "window":
            mask.masked_fill_(distance.abs() >= WINDOW, -torch.inf)
        if kind == "causal":
            mask.masked_fill_(distance > 0, -torch.inf)
        heads = [each.repeat_interleave(HEADS // each.shape[1], dim=1).transpose(0, 1) for each in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.weights[f"{name}.weight"]

    def _rotated(self, heads: Tensor) -> Tensor:
        angle = torch.arange(len(heads))[:, None] / 10000.0 ** (torch.arange(0, DIM, 2) / DIM)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        a, b = heads.chunk(2, dim=-1)
        turned = torch.complex(a, b) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)
