"""Tests of encoder attention: the texts of a launch, the launches into which a platform splits them, and a backend's
layer over tokens of which all padding holds NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.ops import REFERENCE, NormSpec, RotarySpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import NO_CACHE, AttentionBackend, AttentionGroup, HeadsInput, LayerSpec
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.platform.shapes import LaunchShape
from tessera.runner.input_layout import InputLayout
from tessera.testing.attention import TRIAL, Shaping
from tessera.testing.reference import host_device


@dataclass(frozen=True)
class EncoderCase:
    """One launch to test."""

    lengths: tuple[int, ...]  # of the texts, in tokens; those of one token first
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 12
    window: int | None = None
    softcap: float | None = None
    reach: int = 0  # distances that the relative bias tells apart; 0: there is none
    turned: bool = False  # queries and keys have rotary embeddings
    normed: bool = False  # they are normed per head
    stride: int = 0  # tokens between the starts of rows, so that there is padding between them; 0: no gaps
    padding: int = 0  # padding rows, and tokens, at the end
    dtype: str = "float32"
    size: float = 1.0  # of queries and keys

    def spec(self) -> LayerSpec:
        norm = NormSpec(self.head_dim, self.dtype, 1e-6) if self.normed else None
        return LayerSpec(
            0, "encoder_attention", self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, self.dtype, None,
            rotary=RotarySpec(self.head_dim, self.head_dim) if self.turned else None, q_norm=norm, k_norm=norm,
            window=self.window, softcap=self.softcap, relative_reach=self.reach,
        )  # fmt: skip


_TEXTS = 1, 3, 17, 64, 130
_LONG = 1, 700, 129, 256
"""A little more than 128, 256 and 512 tokens: kernels use tiles of 16 to 128."""

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
        "window": {"window": 9},
        "window-of-one": {"window": 1},
        "wide-window": {"window": 100},
        "biased": {"reach": 200},
        "biased-nearby": {"reach": 7},
        "window-biased": {"window": 33, "reach": 33},
        "softcap-biased": {"softcap": 0.7, "reach": 20},
        "turned": {"turned": True},
        "normed-turned": {"turned": True, "normed": True},
        "all-heads": {"kv_heads": 6, "head_dim": 20},
        "one-kv-head": {"kv_heads": 1},
        "heads-of-32": {"heads": 4, "kv_heads": 4, "head_dim": 32},
        "heads-of-64": {"heads": 4, "kv_heads": 2, "head_dim": 64},
        "heads-of-80": {"heads": 3, "kv_heads": 3, "head_dim": 80},
        "heads-of-128": {"heads": 2, "kv_heads": 1, "head_dim": 128},
        "many-heads": {"heads": 40, "kv_heads": 40, "lengths": (1, 5, 40)},
        "spaced": {"stride": 133, "padding": 2},
        "padded": {"padding": 3},
        "long": {"lengths": _LONG},
        "long-window": {"lengths": _LONG, "window": 150},
        "one-text": {"lengths": (300,)},
        "one-token": {"lengths": (1,)},
        "many-texts": {"lengths": (*(1,) * 9, *(2 + 7 * text % 50 for text in range(61)))},
        "large-scores": {"size": 4.0},
    }
)
"""How each case differs from the plain one, by name."""


def encoder_cases(dtype: str = "float32") -> Iterator[tuple[str, EncoderCase]]:
    """Cases by name."""
    for name, different in VARIANTS.items():
        yield name, replace(EncoderCase(_TEXTS, dtype=dtype), **different)


@dataclass
class EncoderTrial:
    """Runs a backend's layer on the device of `ops`. shaping: how the platform splits and pads launches, which must
    hold each text whole; None: one launch of the case's shape. Results are on the host."""

    backend: AttentionBackend
    case: EncoderCase
    seed: int = 0
    ops: BoundOps = field(default_factory=lambda: BoundOps(REFERENCE, host_device()))
    shaping: Shaping | None = None

    def __post_init__(self) -> None:
        case, spec = self.case, self.case.spec()
        random = torch.Generator().manual_seed(self.seed)
        dtype, inputs = torch_dtype(case.dtype), case.heads + case.kv_heads
        self.texts = []
        for length in case.lengths:
            drawn = torch.randn(length, inputs + case.kv_heads, case.head_dim, generator=random)
            drawn[:, :inputs] *= case.size
            self.texts.append(drawn.to(dtype).flatten(1))
        angles = torch.outer(torch.arange(float(max(case.lengths))), 10.0 ** -torch.linspace(0, 2, case.head_dim // 2))
        self.weights = {
            "relative_bias": torch.randn(case.heads, max(2 * case.reach - 1, 1), generator=random),
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1),
            "q_norm": torch.rand(case.head_dim, generator=random).to(dtype),
            "k_norm": torch.rand(case.head_dim, generator=random).to(dtype),
        }
        self.group = AttentionGroup(spec, (0,), NO_CACHE, TRIAL, self.ops.device)
        placed = {name: weight.to(self.target) for name, weight in self.weights.items()}
        self.layer = self.backend.bind(spec, placed, self.ops, self.ops.device)

    @property
    def target(self) -> Any:
        return self.ops.device.target

    def run(self) -> list[Tensor]:
        """[tokens, H D] of each text."""
        found: list[Tensor] = [torch.empty(0)] * len(self.texts)
        for launch, texts, starts in self.launches():
            x = torch.full((launch.key.tokens, self.texts[0].shape[1]), torch.nan, dtype=self.texts[0].dtype)
            for text, start in zip(texts, starts, strict=True):
                x[start : start + len(self.texts[text])] = self.texts[text]
            mixed = self.layer.fused(x.to(self.target), launch.positions, [], launch.plans[0]).cpu()
            for text, start in zip(texts, starts, strict=True):
                found[text] = mixed[start : start + len(self.texts[text])]
        return found

    def launches(self) -> Iterator[tuple[Launch, list[int], list[int]]]:
        """The launches, each with its texts and where their tokens start in it."""
        lengths = self.case.lengths
        if self.shaping is None:
            yield self.launch(list(range(len(lengths))), self._shape())
            return
        grants = [(length, length, text) for text, length in enumerate(lengths)]
        for held, shape in self.shaping.launches(grants, block_size=max(lengths)):
            yield self.launch([text for _, _, text in held], shape)

    def launch(self, texts: list[int], shape: LaunchShape) -> tuple[Launch, list[int], list[int]]:
        """The launch of these texts, with its plan, and where the tokens of each start in it."""
        lengths = np.array([self.case.lengths[text] for text in texts], np.int32)
        layout = InputLayout.build(shape, np.arange(len(texts), dtype=np.int32), lengths, len(texts))
        seq_lens = layout.by_row(lengths)

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.target)

        launch = Launch(
            key=shape.key,
            num_rows=layout.num_rows,
            num_tokens=layout.num_tokens,
            rows=tensor(layout.rows),
            tokens=tensor(np.zeros(shape.key.tokens, np.int32)),
            positions=tensor(layout.positions(np.zeros_like(lengths))),
            query_start_loc=tensor(layout.query_start_loc),
            query_lens=tensor(layout.query_lens),
            seq_lens=tensor(seq_lens),
            seq_lens_host=seq_lens,
            query_start_loc_host=layout.query_start_loc,
            query_lens_host=layout.query_lens,
            slot_mapping=[],
            block_tables=[],
            logits_indices=tensor(layout.logits_indices),
        )
        launch.plans = [self.backend.plan(launch, self.group, None)]
        return launch, texts, layout.query_start_loc[: len(texts)].tolist()

    def _shape(self) -> LaunchShape:
        case, rows = self.case, len(self.case.lengths)
        tokens = rows * case.stride if case.stride else sum(case.lengths)
        key = LaunchKey("mixed", rows + case.padding, max(case.lengths), 1, tokens + case.padding)
        if case.stride:
            key = replace(key, tokens=key.rows * case.stride)
        return LaunchShape(key, 0, rows, case.stride)

    def expected(self) -> list[Tensor]:
        """The expected result of run(), in float64."""
        spec, definition = self.case.spec(), BoundOps(REFERENCE, host_device())
        heads = HeadsInput(spec, self.weights, definition).heads
        return [
            self._attention(*(part.double() for part in heads(text.clone(), torch.arange(len(text)).int()))).flatten(1)
            for text in self.texts
        ]

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of one text: q [T, H, D], k and v [T, Hk, D] -> [T, H, D]."""
        case = self.case
        k, v = (each.repeat_interleave(case.heads // case.kv_heads, dim=1).transpose(0, 1) for each in (k, v))
        scores = q.transpose(0, 1) @ k.mT * case.head_dim**-0.5
        if case.softcap is not None:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        place = torch.arange(len(q))
        ahead = place[None, :] - place[:, None]
        if case.reach:
            most = case.reach - 1
            scores = scores + self.weights["relative_bias"].double()[:, ahead.clamp(-most, most) + most]
        if case.window is not None:
            scores = scores.masked_fill(ahead.abs() >= case.window, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)
