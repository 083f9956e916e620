"""Runs a model's code on a few tokens before weights are loaded, to learn what its attention layers call for and to
check that tokens interact only in attention.

Cheap per-token functions replace linear layers, experts and the embedding; everything else (norms, routers, tables)
gets random weights. Attention is replaced by a function of the token's own query, key and value. Reordering the tokens,
or replacing one of them, must then leave the results of the others unchanged. A model that fails this keeps more than
keys and values, or takes positions from the order of the batch. All of this runs in float32, whatever dtype the model
is served in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.attention import AttentionCall, fit
from tessera.models.through_transformers.inline_attention import route_inline
from tessera.models.through_transformers.older_attention import route_methods
from tessera.models.through_transformers.positions import Positions
from tessera.models.through_transformers.skeleton import (
    NO_INTERFACE,
    REHEARSED,
    SERVED,
    Anatomy,
    HeadShape,
    set_attention,
    sizes,
)
from tessera.models.through_transformers.types import first_line

TOKENS = 6
TOLERANCE = 1e-3
BESIDE_TEXT = frozenset({"embed_tokens_extend", "encoder_attn", "image_encoder", "visual_projection"})
"""What parts are called that a text alone does not enter: attention to another text, and what makes embeddings of
images or sound. Where they stand idle, they are left out."""
_WHOLE = 2**22  # the most elements of a parameter that is filled with random values throughout
_TABLE = 4096  # tables up to this length are exceeded by the number of tokens


@dataclass
class Rehearsed:
    """What the rehearsal has shown."""

    # The name of the model below the head.
    base: str = ""
    # The calls of attention in order, each with its module, which may have several.
    attention: list[tuple[nn.Module, AttentionCall]] = field(default_factory=list)
    # How many experts each expert module uses per token.
    experts: dict[nn.Module, int] = field(default_factory=dict)
    # Of a model that generates.
    head: HeadShape = field(default_factory=HeadShape)
    # Makes the head's input of hidden states, [1, T, n] -> [1, T, k], where the head is replaced by an identity; None
    # where they are its input.
    transform: nn.Module | None = None
    # What the code calls the position of a text's first token.
    first_position: int = 0
    # Elements of the hidden states.
    width: int = 0
    # Whether its code takes tokens, of which it has more than one embedding, instead of their embeddings.
    by_tokens: bool = False

    @property
    def looks_ahead(self) -> bool:
        """Whether each token sees its whole text."""
        return all(call.sight.ahead for _, call in self.attention)


def rehearse(anatomy: Anatomy, positions: Positions) -> Rehearsed:
    """Leaves the model ready to serve. Raises RefusedTypeError with the first reason why it cannot be served."""
    route_methods(anatomy.model)
    route_inline(anatomy.model)
    try:
        return _rehearsed(_Rehearsal(anatomy, positions, by_tokens=False))
    except RefusedTypeError as refused:
        if anatomy.head is None:
            raise
        set_attention(anatomy.model, REHEARSED)
        with suppress(RefusedTypeError):
            return _rehearsed(_Rehearsal(anatomy, positions, by_tokens=True))
        raise refused from None


def _rehearsed(rehearsal: _Rehearsal) -> Rehearsed:
    anatomy = rehearsal.anatomy
    try:
        with torch.inference_mode(), rehearsal.stood_in():
            rehearsal.listen()
            set_attention(anatomy.model, SERVED)
            rehearsal.find_first_position()
            rehearsal.compare_embeddings()
            rehearsal.compare_orders()
    except RefusedTypeError:
        raise
    except Exception as error:  # transformers' code may raise anything for what it does not support
        raise RefusedTypeError(
            f"its code does not run on embeddings and positions alone ({first_line(error)})"
        ) from error
    anatomy.remove(rehearsal.idle)
    return rehearsal.rehearsed


class _Rehearsal:
    def __init__(self, anatomy: Anatomy, positions: Positions, *, by_tokens: bool) -> None:
        self.anatomy, self.positions, self.rehearsed = anatomy, positions, Rehearsed(by_tokens=by_tokens)
        self.draw = torch.Generator().manual_seed(0)
        self.hidden_size = anatomy.embedding.weight.shape[1]
        # Modules called in listen(), and linear layers called so far.
        self.called: set[nn.Module] = set()
        self.reached: set[nn.Module] = set()
        # Parts that a text does not enter.
        self.idle: set[str] = set()
        # The modules of attention of the current run, in the order of their calls.
        self.attended: list[nn.Module] = []
        self.heard: dict[str, Tensor] = {}
        # The inputs and the output of the last call of each module outside of the bases, by its name.
        self.calls: dict[str, tuple[Any, Any]] = {}
        self.weights = self._weights()

    # ---- checks

    def listen(self) -> None:
        """Records the attention calls, and what the head does with the hidden states."""
        hidden_of: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for name, base in self.anatomy.bases.items():
                hear = partial(_hear, hidden_of, name)
                hooks.enter_context(base.register_forward_hook(hear))
            for name, module in self.anatomy.model.named_modules():
                hooks.enter_context(module.register_forward_hook(self._call))
                if name and not any(f"{name}.".startswith(f"{base}.") for base in self.anatomy.bases):
                    hooks.enter_context(module.register_forward_hook(partial(_note, self.calls, name)))
            output = self._run("", torch.arange(TOKENS), **self._inputs(TOKENS))
        self._check_attention()
        self._find_idle()
        if self.anatomy.head is not None:
            self._find_head(hidden_of, output.logits)

    def _find_idle(self) -> None:
        idle = [name for name, module in self.anatomy.linears.items() if module not in self.reached]
        parts = idle if self.anatomy.head is None else [self._part(name) for name in idle]
        for name, part in zip(idle, parts, strict=True):
            if self.anatomy.head is not None and not self._is_beside_text(part):
                raise RefusedTypeError(f"text alone does not reach all of it ('{name}')")
        self.idle.update(parts)

    def _part(self, name: str) -> str:
        """The outermost module around a linear layer of which nothing was called."""
        keys = name.split(".")
        outer = (".".join(keys[: count + 1]) for count in range(len(keys)))
        idle = (part for part in outer if self.called.isdisjoint(self.anatomy.model.get_submodule(part).modules()))
        return next(idle)

    def _is_beside_text(self, part: str) -> bool:
        return not BESIDE_TEXT.isdisjoint(part.split("."))

    def _check_attention(self) -> None:
        if not self.rehearsed.attention:
            raise RefusedTypeError(NO_INTERFACE)
        ahead = [call.sight.ahead for _, call in self.rehearsed.attention]
        if self.anatomy.head is not None and any(ahead):
            encodes = getattr(self.anatomy.model.config, "is_decoder", None) is False
            hint = "; the config.json of a decoder says is_decoder: true" if encodes else ""
            raise RefusedTypeError(f"its attention looks ahead{hint}")
        if any(ahead) and not all(ahead):
            raise RefusedTypeError("some of its layers look ahead and others do not")

    def _find_head(self, hidden_of: dict[str, Tensor], logits: Tensor) -> None:
        """What the head over the vocabulary does with the hidden states of the model below it."""
        if not hidden_of:
            raise RefusedTypeError("it is not a model with a head on it")
        self.rehearsed.base = next(name for name in self.anatomy.bases if name in hidden_of)
        cap = getattr(self.anatomy.model.config.get_text_config(), "final_logit_softcapping", None)
        hidden, taken, product = hidden_of[self.rehearsed.base], self.heard["taken"], self.heard["product"]
        self.rehearsed.transform = self._find_transform(hidden, taken, product)
        before = hidden if self.rehearsed.transform is None else taken
        self.rehearsed.head = HeadShape.from_outputs(before, taken, product, logits, cap or 0)

    def _find_transform(self, hidden: Tensor, taken: Tensor, product: Tensor) -> nn.Module | None:
        """The module outside of the base that makes the head's input of the hidden states, or would if the head gave
        back what it takes; None if nothing does, or it takes more."""
        for name, (inputs, output) in self.calls.items():
            module = self.anatomy.model.get_submodule(name)
            if module is self.anatomy.head or len(inputs) != 1:
                continue
            holds_head = any(child is self.anatomy.head for child in module.modules())
            if _equal(inputs[0], hidden) and _equal(output, product if holds_head else taken):
                turned = functional_call(module, self._weights_of(name), (hidden.flip(1),)).flip(1)
                return module if _same(output, turned) else None
        return None

    def find_first_position(self) -> None:
        """By what the code does where it is told no positions: tables of some families begin with rows of padding."""
        padding = getattr(self.anatomy.model.config.get_text_config(), "pad_token_id", None)
        firsts = [0, *([padding + 1] if isinstance(padding, int) and padding >= 0 else [])]
        if self.anatomy.head is not None and len(firsts) == 1:
            return
        places, inputs = torch.arange(TOKENS), self._inputs(TOKENS)
        plain = self._run(self.rehearsed.base, None, **inputs)[0]
        self.rehearsed.width = plain.shape[-1]
        for first in firsts:
            if _same(plain, self._run(self.rehearsed.base, places + first, **inputs)[0]):
                self.rehearsed.first_position = first
                return
        raise RefusedTypeError("it counts positions in a way unknown here")

    def compare_embeddings(self) -> None:
        """Checks that token ids and their embeddings give the same result."""
        if self.rehearsed.by_tokens:
            return
        places = torch.arange(TOKENS)
        tokens = places[None] % self.anatomy.embedding.num_embeddings
        name = next(name for name, module in self.anatomy.model.named_modules() if module is self.anatomy.embedding)
        embedded = functional_call(self.anatomy.embedding, self._weights_of(name), (tokens,))
        places = places + self.rehearsed.first_position
        by_tokens = self._run(self.rehearsed.base, places, input_ids=tokens)[0]
        if not _same(by_tokens, self._run(self.rehearsed.base, places, inputs_embeds=embedded)[0]):
            raise RefusedTypeError("it uses more than one embedding of its tokens")

    def compare_orders(self) -> None:
        """Checks that reordering the tokens along with their positions, and replacing one, leaves the others unchanged.
        There are more tokens than any table indexed by place in the batch has entries."""
        tables = [buffer.shape[1] for buffer in self.anatomy.model.buffers() if buffer.dim() == 2 and len(buffer) == 1]
        count = max([TOKENS, *(size + 1 for size in tables if size < _TABLE)])
        places = torch.arange(count) % TOKENS + self.rehearsed.first_position
        others, back = torch.arange(count) != 1, torch.arange(count).flip(0)
        ((name, inputs),) = self._inputs(count).items()
        ((_, changed),) = self._inputs(count).items()
        changed[:, others] = inputs[:, others]
        plain = self._run(self.rehearsed.base, places, **{name: inputs})[0]
        moved = self._run(self.rehearsed.base, places[back], **{name: changed[:, back]})[0][:, back]
        if not _same(plain[:, others], moved[:, others]):
            raise RefusedTypeError("tokens meet outside of attention, or positions are those of the batch")

    def _inputs(self, count: int) -> dict[str, Tensor]:
        """Other tokens in each call, or embeddings."""
        if not self.rehearsed.by_tokens:
            return {"inputs_embeds": self._random(1, count, self.hidden_size)}
        return {"input_ids": torch.randint(self.anatomy.embedding.num_embeddings, (1, count), generator=self.draw)}

    def _run(self, name: str, places: Tensor | None, **inputs: Any) -> Any:
        inputs |= {**self.positions.arguments(places), "use_cache": False}
        self.attended = []
        output = functional_call(self.anatomy.model.get_submodule(name), self._weights_of(name), kwargs=inputs)
        if self.attended != [module for module, _ in self.rehearsed.attention]:
            raise RefusedTypeError("its layers do not attend in the same order each time")
        return output

    def _weights_of(self, name: str) -> dict[str, Tensor]:
        prefix = f"{name}." if name else ""
        return {key.removeprefix(prefix): value for key, value in self.weights.items() if key.startswith(prefix)}

    def _call(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        self.called.add(module)

    # ---- stand-ins

    @contextmanager
    def stood_in(self) -> Iterator[None]:
        anatomy = self.anatomy
        replaced: dict[nn.Module, Callable[..., Tensor]] = {
            module: partial(self._linear, module, *sizes(module)) for module in anatomy.linears.values()
        }
        if anatomy.head is not None:
            replaced[anatomy.head] = self._head
        if type(anatomy.embedding) is nn.Embedding:
            replaced[anatomy.embedding] = partial(_embedded, self.hidden_size)
        modules = list(anatomy.model.modules())
        for module, forward in replaced.items():
            module.forward = forward
        own = {module: module._parameters for module in replaced}
        nothing = nn.Parameter(torch.empty(0), requires_grad=False)
        for module in replaced:
            module._parameters = {"weight": nothing}  # the code may ask for its dtype
        for module in modules:
            module.tessera_attention, module.tessera_experts = self._attention, self._experts
        try:
            yield
        finally:
            for module, parameters in own.items():
                del module.forward
                module._parameters = parameters
            for module in modules:
                del module.tessera_attention, module.tessera_experts

    def _attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, arguments: Any
    ) -> Tensor:
        if self.anatomy.model.config._attn_implementation != SERVED:
            call = AttentionCall.from_arguments(module, query, key, value, mask, arguments)
            self.rehearsed.attention.append((module, call))
        self.attended.append(module)
        group = query.shape[1] // key.shape[1]
        key, query = fit(key, value.shape[-1]), fit(query, value.shape[-1])
        own = value.repeat_interleave(group, 1) + 0.3 * key.repeat_interleave(group, 1) + 0.3 * query
        return own.transpose(1, 2).contiguous()

    def _experts(self, module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        self.rehearsed.experts[module] = ids.shape[-1]
        return hidden * (weights * torch.cos(ids.to(weights.dtype))).sum(-1, keepdim=True).to(hidden.dtype)

    def _linear(self, module: nn.Module, n: int, k: int, x: Tensor) -> Tensor:
        self.reached.add(module)
        return _product(n, k, x)

    def _head(self, hidden: Tensor) -> Tensor:
        product = _product(64, hidden.shape[-1], hidden)
        self.heard |= {"taken": hidden, "product": product}
        return product

    # ---- weights

    def _weights(self) -> dict[str, Tensor]:
        anatomy, found = self.anatomy, {}
        idle = anatomy.exchanged() | {*anatomy.experts.values()}
        for name, module in anatomy.model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for key, tensor in own if module not in idle else ():
                if tensor.is_meta:
                    found[f"{name}.{key}" if name else key] = self._weight(tensor)
        return found

    def _weight(self, tensor: Tensor) -> Tensor:
        shape = tuple(tensor.shape)
        if tensor.numel() > _WHOLE:
            shape = (*(1 for _ in shape[:-1]), shape[-1])
        value = 0.75 + 0.25 * self._random(*shape) if tensor.dim() < 2 else self._random(*shape) / math.sqrt(shape[-1])
        return value.to(torch.float32 if tensor.is_floating_point() else tensor.dtype).expand(tensor.shape)

    def _random(self, *shape: int) -> Tensor:
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=self.draw)


def _hear(into: dict[str, Tensor], name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    into[name] = output[0]


def _note(into: dict[str, tuple[Any, Any]], name: str, _module: nn.Module, inputs: Any, output: Any) -> None:
    into[name] = inputs, output


def _equal(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and torch.equal(value, tensor)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _embedded(n: int, tokens: Tensor) -> Tensor:
    """[..] -> [.., n]: a different vector for every token."""
    return torch.cos((tokens[..., None] + 1.0) * torch.arange(1.0, n + 1.0))


def _product(n: int, k: int, x: Tensor) -> Tensor:
    """[.., k] -> [.., n]: each output is an element of the input times a factor that depends on the output."""
    at = torch.arange(n)
    return x[..., (at * 7 + at // k) % k] * torch.cos(at.to(x.dtype))
