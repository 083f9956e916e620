"""The head over the vocabulary of models that were trained to guess masked tokens, which sparse embedders use (SPLADE):
a text's vector has a weight for each token of the vocabulary, log(1 + relu(its largest logit in the text))."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.layers.build import Build
from tessera.layers.classification import HeadNorm
from tessera.layers.pooling import ACTIVATIONS, Dense, as_it_is
from tessera.layers.weights import Parameter
from tessera.platform.model import PoolingHead
from tessera.platform.quantization import Part


@dataclass(frozen=True)
class MaskedHeadConfig:
    """What the parts of the head are called in a checkpoint, in the order in which they are applied."""

    dense: str
    norm: str
    # The weight over the vocabulary, and the embedding's, which stands for it where only that is stored.
    weight: tuple[str, str]
    # The bias, which some checkpoints hold under the second name.
    bias: tuple[str, str]
    # Of the dense layer, by torch's name.
    activation: str = "gelu"


class SparseHead:
    """log1p and relu keep the order of logits, so they are taken of the largest alone."""

    pooling = "max"

    def __init__(self, build: Build, config: MaskedHeadConfig, vocab: int, hidden: int, eps: float) -> None:
        self.dense = Dense(build, config.dense, hidden, hidden, activation=config.activation)
        self.norm = HeadNorm(build, config.norm, hidden, eps, bias=True)
        (weight, embedding), (bias, also) = config.weight, config.bias
        parts = {
            "weight": [Part(weight, (vocab, hidden), also=(embedding,), dtype="float32")],
            "bias": [Part(bias, (vocab,), also=(also,), dtype="float32")],
        }
        self.parameter = build.register_parameter(Parameter(parts, as_it_is))

    def each(self, states: Tensor) -> Tensor:
        """[T, hidden] -> logits [T, vocab] float32"""
        weights = self.parameter.packed
        return F.linear(self.norm(self.dense(states.float())), weights["weight"], weights["bias"])

    def __call__(self, pooled: Tensor) -> Tensor:
        return torch.log1p(torch.relu(pooled))


def sparse_heads(
    build: Build, config: MaskedHeadConfig | None, vocab: int, hidden: int, eps: float
) -> dict[str, PoolingHead]:
    """The head of the task embed, if the model's vectors are sparse and it has the layers for it."""
    if config is None or config.activation not in ACTIVATIONS or build.pooler is None or not build.pooler.sparse:
        return {}
    return {"embed": SparseHead(build, config, vocab, hidden, eps)} if build.is_last_stage else {}
