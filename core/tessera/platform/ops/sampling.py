"""From logits to tokens and their log probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tessera.platform.device import Tensor
from tessera.platform.ops.linear import LinearSpec


class SamplingRows(NamedTuple):
    """What sampling knows of S rows, [S] each: temperature (0: greedy), top_p and min_p float32, top_k int32 (0: off),
    seed int64, and position int64, the place in its request of the token to draw."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


class Sampled(NamedTuple):
    """tokens [S] int32. With logprobs: ids [S, 1 + k] int32 and logprobs [S, 1 + k] float32, the drawn token first, and
    its ranks [S] int32."""

    tokens: Tensor
    ids: Tensor | None = None
    logprobs: Tensor | None = None
    ranks: Tensor | None = None


class Logprobs(NamedTuple):
    """Of one token in each of S rows, and of the most likely ones: ids [S, 1 + k] int32 and logprobs [S, 1 + k]
    float32, that token first; its ranks [S] int32, 1 the most likely."""

    ids: Tensor
    logprobs: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class SampleSpec:
    """greedy: every row takes its largest logit. filters: some row asks for top_k, top_p or min_p. logprobs:
    alternatives reported a row; -1 none."""

    vocab: int
    greedy: bool = False
    filters: bool = False
    logprobs: int = -1


@dataclass(frozen=True)
class LogprobsSpec:
    """logprobs: alternatives reported a row."""

    vocab: int
    logprobs: int


@dataclass(frozen=True)
class LogitsSampleSpec:
    """head: the rows of the vocabulary here; gather: the group that has the others; cap: soft cap of the logits; scale:
    multiplies them."""

    head: LinearSpec
    sample: SampleSpec
    gather: str | None = None
    cap: float = 0.0
    scale: float = 1.0
