"""The head of a classifier, read off from what transformers' code does with random hidden states: which of them it
takes, and the linear layers and norms that follow. This engine computes it in float32, as it does all such heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.utils import logging

from tessera.layers.build import Build
from tessera.layers.classification import ClassificationHead, HeadNorm, Layer
from tessera.layers.pooling import ACTIVATIONS, Dense
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.types import first_line
from tessera.platform.model import PoolingHead

TOKENS = 5
_TOLERANCE = 1e-4
_UNKNOWN = "its head classifies in a way unknown here"
_POOLER = "pooler."
"""Of BERT and its relatives: a layer of the head that is a part of the model below it."""


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer or layer norm of a head."""

    # In the checkpoint.
    name: str
    # A linear layer has both, a norm the same twice.
    inputs: int
    outputs: int
    bias: bool
    # Of a norm; None for a linear layer.
    eps: float | None = None
    # By its name in ACTIVATIONS.
    activation: str = "identity"


@dataclass(frozen=True)
class ClassifierForm:
    """What a classifier does with hidden states."""

    # Which states a text is classified by; "all": each token is.
    pooling: str
    layers: Sequence[HeadLayer]
    # Whether each token is classified, and then the numbers are pooled.
    late: bool = False


@dataclass
class _LayerCall:
    """Of a module of the head."""

    layer: HeadLayer
    taken: Tensor
    result: Tensor


def read_classifier(whole: PreTrainedModel, names: CheckpointNames) -> ClassifierForm:
    """whole: the model with its head, without weights. Raises RefusedTypeError for a head that is more than linear
    layers, norms and activations."""
    body: Any = whole.base_model
    if body is whole:
        raise RefusedTypeError(_UNKNOWN)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, whole.config.get_text_config().hidden_size, generator=draw)
    inside = {id(weight) for name, weight in body.named_parameters() if not name.startswith(_POOLER)}
    weights = {name: _random(weight, draw) for name, weight in whole.named_parameters() if id(weight) not in inside}
    calls: list[_LayerCall] = []
    body.forward = partial(_body, body, hidden)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn that it sees no tokens
    try:
        with ExitStack() as hooks, torch.inference_mode():
            for name, module in whole.named_modules():
                if type(module) in (nn.Linear, nn.LayerNorm) and f"{name}.weight" in weights:
                    hear = partial(_record, calls, names.candidates(module.weight)[0])
                    hooks.enter_context(module.register_forward_hook(hear))
            logits = functional_call(whole, weights, kwargs={"inputs_embeds": hidden}).logits
    except Exception as error:  # transformers' code may raise anything for what it does not support
        raise RefusedTypeError(f"its head does not run on hidden states alone ({first_line(error)})") from error
    finally:
        del body.forward
        logging.set_verbosity(verbosity)
    return _form(hidden, calls, logits)


def _body(body: Any, hidden: Tensor, *_args: Any, **_options: Any) -> Any:
    """Stands for the model below the head."""
    pooler = getattr(body, "pooler", None)
    pooled = None if pooler is None else pooler(hidden)
    return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=hidden, pooler_output=pooled)


def _random(weight: Tensor, draw: torch.Generator) -> Tensor:
    value = torch.randn(weight.shape, generator=draw)
    return value if weight.dim() < 2 else value / weight.shape[-1] ** 0.5


def _record(calls: list[_LayerCall], weight: str, module: Any, inputs: Any, result: Tensor) -> None:
    sizes = tuple(reversed(module.weight.shape)) * 2
    eps = module.eps if isinstance(module, nn.LayerNorm) else None
    calls.append(
        _LayerCall(
            HeadLayer(weight.removesuffix(".weight"), sizes[0], sizes[1], module.bias is not None, eps),
            inputs[0],
            result,
        )
    )


def _form(hidden: Tensor, calls: Sequence[_LayerCall], logits: Tensor) -> ClassifierForm:
    if not calls:
        raise RefusedTypeError(_UNKNOWN)
    pooling = _pooling(hidden, calls[0].taken)
    layers = []
    for call, following in zip(calls, (*(call.taken for call in calls[1:]), None), strict=True):
        if following is None:
            layers.append(call.layer)
        else:
            activation = next((name for name, f in ACTIVATIONS.items() if _same(f(call.result), following)), None)
            if activation is None:
                raise RefusedTypeError(_UNKNOWN)
            layers.append(replace(call.layer, activation=activation))
    result = calls[-1].result
    if _same(result, logits):
        return ClassifierForm(pooling, layers)
    if pooling != "all":
        raise RefusedTypeError(_UNKNOWN)
    # A choice of one token's numbers is the numbers of that token's state.
    pooling = _pooling(result, logits)
    return ClassifierForm(pooling, layers, late=pooling == "mean")


def _pooling(states: Tensor, pooled: Tensor) -> str:
    """How the states [1, T, n] became these. Raises RefusedTypeError."""
    ways = {"all": states, "cls": states[:, 0], "last": states[:, -1], "mean": states.mean(1)}
    way = next((way for way, value in ways.items() if _same(value, pooled)), None)
    if way is None:
        raise RefusedTypeError(_UNKNOWN)
    return way


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE)


def bind_classifier(build: Build, form: ClassifierForm) -> PoolingHead:
    return ClassificationHead(form.pooling, list(_layers(build, form.layers)), late=form.late)


def _layers(build: Build, layers: Sequence[HeadLayer]) -> Iterator[Layer]:
    for layer in layers:
        if layer.eps is None:
            sizes = layer.inputs, layer.outputs
            yield Dense(build, layer.name, *sizes, bias=layer.bias, activation=layer.activation)
        else:
            yield HeadNorm(build, layer.name, layer.inputs, layer.eps, bias=layer.bias)
            if layer.activation != "identity":
                yield ACTIVATIONS[layer.activation]
