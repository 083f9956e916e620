"""The heads of classifiers and rerankers: from a text's hidden states to a number for each label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.errors import ModelError, printable
from tessera.layers.build import Build
from tessera.layers.embedding import HEAD
from tessera.layers.pooling import Dense, Float32Parameter, as_it_is
from tessera.layers.weights import Parameter
from tessera.platform.model import PoolingHead
from tessera.platform.quantization import Part

Layer = Callable[[Tensor], Tensor]
"""[n, k] float32 -> [n, m] float32"""


@dataclass(frozen=True)
class HeadConfig:
    """What is between the hidden states and the numbers."""

    # The last layer, which gives the numbers.
    classifier: str = "classifier"
    classifier_bias: bool = True
    # A layer of hidden_size before it, if there is one.
    dense: str | None = None
    dense_bias: bool = True
    activation: str = "tanh"
    # A layer norm behind that, if there is one.
    norm: str | None = None
    norm_bias: bool = True
    eps: float = 1e-5
    # Which states a text is classified by.
    pooling: str = "cls"
    # What the numbers are divided by.
    temperature: float = 1.0
    # Whether each token is classified, and then the numbers are pooled.
    late: bool = False


class ClassificationHead:
    """layers: behind pooling, or before it if `late`."""

    def __init__(self, pooling: str, layers: Sequence[Layer], *, late: bool = False) -> None:
        self.pooling, self.layers, self.late = pooling, layers, late

    def each(self, states: Tensor) -> Tensor:
        return self._numbers(states.float()) if self.late else states

    def __call__(self, pooled: Tensor) -> Tensor:
        return pooled if self.late else self._numbers(pooled)

    def _numbers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class HeadNorm:
    """A layer norm in float32: [n, k] -> [n, k]."""

    def __init__(self, build: Build, name: str, k: int, eps: float, *, bias: bool) -> None:
        self.parameter, self.k, self.eps = Float32Parameter(build, name, (k,), bias=(k,) if bias else None), k, eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.k,), *self.parameter.weight_and_bias, self.eps)


def classification_heads(build: Build, hidden: int, text: HeadConfig, token: HeadConfig) -> dict[str, PoolingHead]:
    """The heads of the tasks classify and token_classify, if the model is to have them; {} on pipeline stages but the
    last. text, token: of each."""
    config = build.pooler
    if config is None or config.token_score is not None or config.label_tokens or not build.is_last_stage:
        return {}
    labels, heads = len(config.labels), dict[str, PoolingHead]()
    layers = [] if "classify" not in config.tasks else _layers(build, hidden, labels, text)
    if layers:
        heads["classify"] = ClassificationHead(text.pooling, layers, late=text.late)
    if "token_classify" in config.tasks:
        shared = bool(layers) and token == text
        heads["token_classify"] = ClassificationHead("all", layers if shared else _layers(build, hidden, labels, token))
    return heads


def _layers(build: Build, hidden: int, labels: int, config: HeadConfig) -> list[Layer]:
    layers: list[Layer] = []
    if config.dense is not None:
        layers.append(Dense(build, config.dense, hidden, hidden, bias=config.dense_bias, activation=config.activation))
    if config.norm is not None:
        layers.append(HeadNorm(build, config.norm, hidden, config.eps, bias=config.norm_bias))
    layers.append(Dense(build, config.classifier, hidden, labels, bias=config.classifier_bias))
    if config.temperature != 1.0:
        layers.append(lambda numbers: numbers / config.temperature)
    return layers


def check_head(build: Build, architecture: str, head: HeadConfig) -> None:
    """Raises ModelError for a model that --convert classify cannot make a classifier, because it has no such head."""
    name = f"{head.classifier}.weight"
    asked = build.pooler is not None and build.pooler.converted
    if asked and build.is_last_stage and build.stored is not None and not build.stored.holds(name):
        raise ModelError(
            f"{printable(architecture, 60)} has no head to classify with (the checkpoint has no '{name}'); name the "
            """tokens whose logits are the labels' numbers: --pooler-config '{"returned_token_ids": [9693, 2152]}'."""
        )


class TokenLogits:
    """[n, hidden] float32 -> the logits of some tokens behind the text [n, tokens] float32. Of the [vocab, hidden]
    weight of the head over the vocabulary only their rows are held, in float32. tied: what the weight is called if it
    is the embedding's."""

    def __init__(
        self,
        build: Build,
        tokens: Sequence[int],
        vocab: int,
        hidden: int,
        *,
        tied: str | None,
        bias: bool,
        scale: float,
        cap: float,
    ) -> None:
        self.scale, self.cap = scale, cap
        also = () if tied is None else (tied,)
        rows = [
            Part(f"{HEAD}.weight", (vocab, hidden), (token, token + 1), also=also, dtype="float32") for token in tokens
        ]
        parts = {"weight": rows}
        if bias:
            parts["bias"] = [Part(f"{HEAD}.bias", (vocab,), (token, token + 1), dtype="float32") for token in tokens]
        self.parameter = build.register_parameter(Parameter(parts, as_it_is))

    def __call__(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.parameter.packed["weight"], self.parameter.packed.get("bias")) * self.scale
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits


def token_heads(build: Build, logits_of: Callable[[Sequence[int]], TokenLogits]) -> dict[str, PoolingHead]:
    """The heads of a language model that classifies by the logits of tokens; {} of others. logits_of: makes the layer
    for some tokens."""
    config = build.pooler
    if config is None or not build.is_last_stage:
        return {}
    score = config.token_score
    if score is not None and score.false_token is not None:
        layers: list[Layer] = [logits_of((score.true_token, score.false_token)), _difference]
        return {"classify": ClassificationHead("last", layers)}
    if score is not None:
        return {"classify": ClassificationHead("last", [logits_of((score.true_token,))])}
    if not config.label_tokens:
        return {}
    logits = logits_of(config.label_tokens)
    return {"classify": ClassificationHead("last", [logits]), "token_classify": ClassificationHead("all", [logits])}


def _difference(logits: Tensor) -> Tensor:
    """[n, 2] -> [n, 1]"""
    return logits[:, :1] - logits[:, 1:]
