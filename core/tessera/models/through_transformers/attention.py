"""Attention in a transformers module: the arguments of its call, and the bound layer that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.layers.attention import LateWeights
from tessera.layers.build import Build
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.skeleton import FOREIGN, Sight
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import AttentionLayer, Caches, LayerSpec
from tessera.platform.launch import Launch

SINKS = "s_aux"
"""What transformers calls the sinks of attention, [H]."""

Lookahead = Literal["none", "windows", "all"]
"""Which layers of causal attention are also lookahead_attention: those with windows, or all."""

_ANSWERED = frozenset({"scaling", "softcap", "dropout", "is_causal", "sliding_window", SINKS})
_WITHOUT_EFFECT = frozenset(
    {"position_ids", "position_embeddings", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
)
_NAMED = {
    "sinks": "attention sinks",
    "position_bias": "a bias of positions in attention",
    "indices": "attention to chosen tokens only",
    "block_indices": "attention to chosen blocks only",
}


@dataclass(frozen=True)
class AttentionCall:
    """One attention layer, as its module calls it. head_dim: of queries, keys and values, of which narrower ones are
    filled up with zeros. value_dim: of values as the module has them. sinks: it has some."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    sight: Sight
    softcap: float | None
    sinks: bool

    @classmethod
    def from_arguments(
        cls,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> AttentionCall:
        """query [1, H, T, D], key and value [1, Hk, T, D]. Raises RefusedTypeError for anything that the bound layer
        does not compute."""
        for name, said in arguments.items():
            if name not in _ANSWERED | _WITHOUT_EFFECT and said is not None and said is not False:
                raise RefusedTypeError(f"it needs {_NAMED.get(name, f'the argument {name} of attention')}")
        if arguments.get("dropout"):
            raise RefusedTypeError("it needs dropout in attention")
        if key.shape[:3] != value.shape[:3] or query.shape[-1] != key.shape[-1]:
            raise RefusedTypeError("its queries, keys and values do not fit together as those of attention")
        if not (query.shape[2] == key.shape[2] and query.shape[1] % key.shape[1] == 0):
            raise RefusedTypeError("its attention is not grouped queries over a token's own keys")
        scaling, softcap, sinks = arguments.get("scaling"), arguments.get("softcap"), arguments.get(SINKS)
        if sinks is not None and sinks.shape != query.shape[1:2]:
            raise RefusedTypeError("it needs other attention sinks than one for each head")
        if isinstance(scaling, Tensor):
            raise RefusedTypeError("the scale of its attention is computed")
        sight = _sight(module, mask, arguments)
        if sight.ahead and value.shape[-1] != key.shape[-1]:
            raise RefusedTypeError("its keys and values have different sizes where attention looks ahead")
        if sight.ahead and sinks is not None:
            raise RefusedTypeError("it needs attention sinks where attention looks ahead")
        return cls(
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=max(key.shape[-1], value.shape[-1]),
            value_dim=value.shape[-1],
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            sight=sight,
            softcap=None if softcap is None else float(softcap),
            sinks=sinks is not None,
        )


def _sight(module: nn.Module, mask: Tensor | None, arguments: Mapping[str, Any]) -> Sight:
    """Read from the mask, as transformers' eager attention does."""
    if mask is None:
        raise RefusedTypeError("its attention is given no mask, so that it would look ahead")
    if mask.is_floating_point() or mask.dtype.itemsize == 1 or int(mask.min()) != int(mask.max()):
        raise RefusedTypeError("it makes a mask or bias of attention by itself")
    number = int(mask.min())
    if number == FOREIGN:
        raise RefusedTypeError("its mask is neither that of whole texts nor causal nor a sliding window")
    sight, causal = Sight.from_number(number), arguments.get("is_causal")
    if not sight.ahead and (getattr(module, "is_causal", True) if causal is None else causal) is False:
        raise RefusedTypeError("its attention looks ahead, and its mask does not")
    return sight


@dataclass
class Step:
    """The current launch, shared by all layers of one model."""

    launch: Launch | None = None
    caches: Caches | None = None
    # Of launches so far.
    count: int = 0

    def begin(self, launch: Launch, caches: Caches) -> None:
        self.launch, self.caches, self.count = launch, caches, self.count + 1


class BoundAttention:
    """Called by a transformers attention module while the model is served. name: of the module."""

    def __init__(self, build: Build, name: str, call: AttentionCall, step: Step, lookahead: Lookahead) -> None:
        spec = _spec(build, call, lookahead)
        self.weights = LateWeights()
        self.weights.add_kv_scales(build, name)
        mixer = build.mixer(spec, self.weights)
        assert isinstance(mixer, AttentionLayer), "a layer of attention"
        self.layer, self.mixer, self.step, self.has_sinks = spec.layer, mixer, step, spec.sinks
        self.head_dim, self.value_dim, self.dtype = call.head_dim, call.value_dim, torch_dtype(spec.dtype)

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, arguments: Any
    ) -> Tensor:
        launch, caches = self.step.launch, self.step.caches
        assert launch is not None
        assert caches is not None
        plan = launch.plans[self.layer]
        heads = (fit(part[0].transpose(0, 1), self.head_dim) for part in (query, key, value))
        q, k, v = (part.to(self.dtype).contiguous() for part in heads)
        if self.has_sinks:
            self.weights["sinks"] = arguments[SINKS].to(self.dtype)  # some models keep them in float32
        self.mixer.write(k, v, caches, plan)
        result: Tensor = self.mixer.attend(q, caches, plan)
        return fit(result, self.value_dim)[None]


def fit(heads: Tensor, dim: int) -> Tensor:
    """[.., D] -> [.., dim], with zeros behind narrower heads and without the end of wider ones."""
    return heads if heads.shape[-1] == dim else F.pad(heads, (0, dim - heads.shape[-1]))


class BoundEncoderAttention:
    """As BoundAttention, where each token sees the whole text. The texts of a launch lie one behind the other, without
    padding, and the mixer knows where each begins."""

    def __init__(self, build: Build, call: AttentionCall, step: Step) -> None:
        spec = _spec(build, call)
        self.mixer = build.mixer(spec, LateWeights())
        self.layer, self.step, self.dtype = spec.layer, step, torch_dtype(spec.dtype)

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, arguments: Any
    ) -> Tensor:
        launch, caches = self.step.launch, self.step.caches
        assert launch is not None
        assert caches is not None
        heads = torch.cat([query, key, value], dim=1)[0].transpose(0, 1).to(self.dtype)  # [T, H + 2 Hk, D]
        result = self.mixer.fused(heads.flatten(1), launch.positions, caches, launch.plans[self.layer])
        return result.view(1, len(heads), query.shape[1], query.shape[3])


def bind_attention(
    build: Build, name: str, call: AttentionCall, step: Step, lookahead: Lookahead
) -> BoundAttention | BoundEncoderAttention:
    """name: of the module."""
    if call.sight.ahead:
        return BoundEncoderAttention(build, call, step)
    return BoundAttention(build, name, call, step, lookahead)


class AttentionInTurn:
    """Of a module that attends more than once in a step: each of its calls is a layer of its own, with its own keys and
    values in the cache."""

    def __init__(self, layers: Sequence[BoundAttention | BoundEncoderAttention], step: Step) -> None:
        self.layers, self.step = layers, step
        # The step of the last call, and the number of calls in it.
        self.count, self.turn = 0, 0

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, arguments: Any
    ) -> Tensor:
        if self.count != self.step.count:
            self.count, self.turn = self.step.count, 0
        layer = self.layers[self.turn]
        self.turn += 1
        return layer(module, query, key, value, mask, arguments)


def _spec(build: Build, call: AttentionCall, lookahead: Lookahead = "none") -> LayerSpec:
    ahead, window = call.sight.ahead, call.sight.window
    causal = "lookahead_attention" if lookahead == "all" or (lookahead == "windows" and window) else "attention"
    return LayerSpec(
        layer=len(build.mixers),
        kind="encoder_attention" if ahead else causal,
        num_heads=call.heads,
        num_kv_heads=call.kv_heads,
        head_dim=call.head_dim,
        scale=call.scale,
        dtype=build.dtype,
        cache=None if ahead else build.cache(call.kv_heads, call.head_dim, window),
        window=window,
        softcap=call.softcap,
        sinks=call.sinks,
    )
