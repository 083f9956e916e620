"""A model's code run on a few tokens before there are weights: what its attention layers ask for, and whether a token's
path meets other tokens anywhere but in attention.

Products, experts and the embedding are stood in for by cheap functions of one token; what is left (norms, routers,
tables) gets random weights. Attention is stood in for by a function of the token's own query, key and value. Then
reordering the tokens, or putting another among them, must change nothing for the rest: a model in which it does keeps
more than keys and values, or takes positions from the order of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tessera.models.refused import RefusedTypeError
from tessera.models.through_transformers.anatomy import Anatomy, sizes
from tessera.models.through_transformers.attention import AttentionCall
from tessera.models.through_transformers.head import HeadShape
from tessera.models.through_transformers.interfaces import SERVED
from tessera.models.through_transformers.types import first_line

TOKENS = 6
TOLERANCE = 1e-3
_WHOLE = 2**22  # elements of a parameter that is drawn in full
_TABLE = 4096  # places of the longest table that is outrun


@dataclass
class Rehearsed:
    """base: the name of the model below the head. attention: what each layer asks for, in the order of the calls.
    experts: how many each expert module is given a token."""

    base: str = ""
    attention: dict[nn.Module, AttentionCall] = field(default_factory=dict)
    experts: dict[nn.Module, int] = field(default_factory=dict)
    head: HeadShape = field(default_factory=HeadShape)


def rehearse(anatomy: Anatomy) -> Rehearsed:
    """Leaves the model as it is served. Raises RefusedTypeError with the first reason not to."""
    rehearsal = _Rehearsal(anatomy)
    try:
        with torch.inference_mode(), rehearsal.stood_in():
            rehearsal.listen()
            anatomy.model.set_attn_implementation(SERVED)
            rehearsal.compare()
    except RefusedTypeError:
        raise
    except Exception as error:  # transformers' code may raise anything for what it cannot do
        raise RefusedTypeError(f"its code does not run on a batch without padding ({first_line(error)})") from error
    return rehearsal.found


class _Rehearsal:
    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy, self.found = anatomy, Rehearsed()
        self.draw = torch.Generator().manual_seed(0)
        tables = [buffer.shape[1] for buffer in anatomy.model.buffers() if buffer.dim() == 2 and len(buffer) == 1]
        self.tokens = max([TOKENS, *(size + 1 for size in tables if size < _TABLE)])
        self.hidden = self._random(1, self.tokens, anatomy.embedding.weight.shape[1])
        self.places = torch.arange(self.tokens)
        self.heard: dict[str, Tensor] = {}
        self.hidden_of: dict[str, Tensor] = {}
        self.weights = self._weights()

    # ---- what is found out

    def listen(self) -> None:
        """What attention is asked for, and what becomes of the hidden states."""
        with ExitStack() as hooks:
            for name, base in self.anatomy.bases.items():
                hooks.enter_context(base.register_forward_hook(partial(self._hear, name)))
            logits = self._run("", inputs_embeds=self.hidden).logits
        if not self.found.attention:
            raise RefusedTypeError("it does not take attention from transformers' attention interface")
        if not self.hidden_of:
            raise RefusedTypeError("it is not a model with a head on it")
        self.found.base = next(name for name in self.anatomy.bases if name in self.hidden_of)
        cap = getattr(self.anatomy.model.config.get_text_config(), "final_logit_softcapping", None)
        hidden, taken, product = self.hidden_of[self.found.base], self.heard["taken"], self.heard["product"]
        self.found.head = HeadShape.of(hidden, taken, product, logits, cap or 0)

    def compare(self) -> None:
        """Tokens are reordered with their positions, and one of them is another."""
        plain = self._run(self.found.base, inputs_embeds=self.hidden)[0]
        others, back = self.places != 1, self.places.flip(0)
        changed = torch.where(others[:, None], self.hidden, self._random(*self.hidden.shape))
        self.places = back
        moved = self._run(self.found.base, inputs_embeds=changed[:, back])[0][:, back]
        if not torch.allclose(plain[:, others], moved[:, others], rtol=TOLERANCE, atol=TOLERANCE):
            raise RefusedTypeError("tokens meet outside of attention, or positions are those of the batch")

    def _run(self, name: str, **inputs: Any) -> Any:
        prefix = f"{name}." if name else ""
        weights = {key.removeprefix(prefix): value for key, value in self.weights.items() if key.startswith(prefix)}
        inputs |= {"position_ids": self.places[None], "use_cache": False}
        return functional_call(self.anatomy.model.get_submodule(name), weights, kwargs=inputs)

    def _hear(self, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self.hidden_of[name] = output[0]

    # ---- who stands in

    @contextmanager
    def stood_in(self) -> Iterator[None]:
        anatomy = self.anatomy
        replaced: dict[nn.Module, Callable[..., Tensor]] = {
            module: partial(_product, *sizes(module)) for module in anatomy.linears.values()
        }
        replaced[anatomy.head] = self._head
        modules = list(anatomy.model.modules())
        for module, forward in replaced.items():
            module.forward = forward
        own = {module: module._parameters for module in replaced}
        for module in replaced:
            module._parameters = {}  # nothing but calling them is offered
        for module in modules:
            module.tessera_attention, module.tessera_experts = self._attention, self._experts
        yield
        for module, parameters in own.items():
            del module.forward
            module._parameters = parameters
        for module in modules:
            del module.tessera_attention, module.tessera_experts

    def _attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, asked: Any
    ) -> Tensor:
        if self.anatomy.model.config._attn_implementation != SERVED:
            if module in self.found.attention:
                raise RefusedTypeError("a layer attends more than once")
            self.found.attention[module] = AttentionCall.of(module, query, key, value, mask, asked)
        group = query.shape[1] // key.shape[1]
        own = value.repeat_interleave(group, 1) + 0.3 * key.repeat_interleave(group, 1) + 0.3 * query
        return own.transpose(1, 2).contiguous()

    def _experts(self, module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        self.found.experts[module] = ids.shape[-1]
        return hidden * (weights * torch.cos(ids.to(weights.dtype))).sum(-1, keepdim=True).to(hidden.dtype)

    def _head(self, hidden: Tensor) -> Tensor:
        product = _product(64, hidden.shape[-1], hidden)
        self.heard |= {"taken": hidden, "product": product}
        return product

    # ---- weights

    def _weights(self) -> dict[str, Tensor]:
        exchanged = self.anatomy.exchanged()
        held = [*self.anatomy.model.named_parameters(), *self.anatomy.model.named_buffers()]
        return {name: self._weight(tensor) for name, tensor in held if tensor.is_meta and id(tensor) not in exchanged}

    def _weight(self, tensor: Tensor) -> Tensor:
        shape = tensor.shape
        if tensor.numel() > _WHOLE:
            shape = (*(1 for _ in shape[:-1]), shape[-1])
        value = 0.75 + 0.25 * self._random(*shape) if tensor.dim() < 2 else self._random(*shape) / math.sqrt(shape[-1])
        return value.to(tensor.dtype).expand(tensor.shape)

    def _random(self, *shape: int) -> Tensor:
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=self.draw)


def _product(n: int, k: int, x: Tensor) -> Tensor:
    """[.., k] -> [.., n]: every output another element, with another factor."""
    at = torch.arange(n)
    return x[..., (at * 7 + at // k) % k] * torch.cos(at.to(x.dtype))
