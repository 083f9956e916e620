"""Attention of modules that compute it in the midst of their forward: how queries, keys and values are made there, and
what is made of the result. In the rehearsal, at its first call, the module's own code has to give the same; from then
on attention goes through the interface as elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.skeleton import FOREIGN, NO_INTERFACE, Sight

_TOLERANCE = 1e-4
_MASK = "attention_mask"

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, [1, H, T, D]."""


def _unchanged(_module: Any, _arguments: Mapping[str, Any], heads: Heads) -> Heads:
    return heads


def _rotated(module: Any, arguments: Mapping[str, Any], heads: Heads) -> Heads:
    """RoFormer's. arguments: of the module's forward."""
    count = 3 if module.rotary_value else 2
    query, key, *value = module.apply_rotary_position_embeddings(arguments["sinusoidal_pos"], *heads[:count])
    return query, key, value[0] if value else heads[2]


@dataclass(frozen=True)
class AttentionForm:
    """What a module does around attention, whose scale is that of its head's size."""

    # The linear layers that make queries, keys and values; a single one makes them one behind the other.
    projections: tuple[str, ...]
    # The number of heads.
    heads: str
    # The linear layer behind attention; "" where it is another module's.
    output: str = ""
    # What it does with the heads before.
    prepare: Callable[[Any, Mapping[str, Any], Heads], Heads] = _unchanged
    # Whether it is causal by itself, and is passed no mask.
    causal: bool = False


_BERT = AttentionForm(("query", "key", "value"), "num_attention_heads")
_BART = AttentionForm(("q_proj", "k_proj", "v_proj"), "num_heads", "out_proj")
_FORMS: Mapping[str, AttentionForm] = {
    "git.GitSelfAttention": _BERT,
    "megatron_bert.MegatronBertSelfAttention": _BERT,
    "mvp.MvpAttention": _BART,
    "openai.Attention": AttentionForm(("c_attn",), "n_head", "c_proj", causal=True),
    "rembert.RemBertSelfAttention": _BERT,
    "roformer.RoFormerSelfAttention": AttentionForm(_BERT.projections, _BERT.heads, prepare=_rotated),
    "trocr.TrOCRAttention": _BART,
    "xglm.XGLMAttention": _BART,
}
"""By the folder in transformers and the name of the module's class."""


def route_inline(model: PreTrainedModel) -> None:
    """Sends the attention of all such modules to where the interface sends that of others."""
    for module in model.modules():
        *_, folder, _file = ("", *type(module).__module__.split("."))
        form = _FORMS.get(f"{folder}.{type(module).__name__}")
        if form is not None:
            module.forward = _InlineAttention(module, form)


class _InlineAttention:
    """In place of a module's forward."""

    def __init__(self, module: Any, form: AttentionForm) -> None:
        self.module, self.form, self.forward = module, form, module.forward
        self.signature = inspect.signature(module.forward)
        # Makes what the module returns of its output; None until its own code has shown that.
        self.returned: Callable[[Tensor], Any] | None = None

    def __call__(self, *positional: Any, **named: Any) -> Any:
        arguments = self.signature.bind(*positional, **named).arguments
        states: Tensor = next(iter(arguments.values()))
        mask = arguments.get(_MASK)
        if self.returned is None:
            mask = self._mask(states, mask)
            self.returned = self._compare(arguments, states, mask)
        return self.returned(self._output(arguments, states, self._routed(mask)))

    def _mask(self, states: Tensor, mask: Tensor | None) -> Tensor | None:
        """One that shows its kind, as those of the rehearsal do."""
        if not self.form.causal:
            return mask
        size = states.shape[1]
        number = FOREIGN if mask is not None else Sight(None, ahead=False).number
        return torch.full((1, 1, size, size), number)

    def _routed(self, mask: Tensor | None) -> Callable[[Heads], Tensor]:
        return lambda heads: self.module.tessera_attention(self.module, *heads, mask, {})

    def _output(self, arguments: Mapping[str, Any], states: Tensor, attend: Callable[[Heads], Tensor]) -> Tensor:
        """states [1, T, n]. attend: -> [1, T, H, D]."""
        form, module = self.form, self.module
        made = [getattr(module, name)(states) for name in form.projections]
        parts = made if len(made) > 1 else made[0].chunk(3, -1)
        query, key, value = (x.unflatten(-1, (getattr(module, form.heads), -1)).transpose(1, 2) for x in parts)
        result = attend(form.prepare(module, arguments, (query, key, value))).flatten(2)
        return getattr(module, form.output)(result) if form.output else result

    def _compare(self, arguments: Mapping[str, Any], states: Tensor, mask: Tensor | None) -> Callable[[Tensor], Any]:
        """Runs the module's own code on what it was called with. Raises RefusedTypeError if it computes anything
        else."""
        ahead = mask is not None and bool((mask == Sight(None, ahead=True).number).all())
        seen = torch.ones(states.shape[1], states.shape[1], dtype=torch.bool)
        seen = seen if ahead else seen.tril()
        hidden = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        own = self.forward(**{**arguments, _MASK: None if self.form.causal else hidden})
        same = self._output(arguments, states, lambda heads: _attended(heads, seen))
        if own[0].shape != same.shape or not torch.allclose(own[0], same, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise RefusedTypeError(NO_INTERFACE)
        kind, rest = type(own), [None] * (len(own) - 1)
        return lambda output: kind([output, *rest])


def _attended(heads: Heads, seen: Tensor) -> Tensor:
    """-> [1, T, H, D]."""
    return F.scaled_dot_product_attention(*heads, attn_mask=seen).transpose(1, 2)
