"""Random arguments for each op of the table at a place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tessera.platform.ops import (
    ActivationSpec,
    AddLayerNormSpec,
    AddNormSpec,
    AddSpec,
    BoundOps,
    EditLogitsSpec,
    Edits,
    EmbeddingSpec,
    ExpertsSpec,
    GatedMLPSpec,
    GateSpec,
    History,
    LayerNormSpec,
    LinearSpec,
    LogitsSampleSpec,
    LogprobsSpec,
    MaskLogitsSpec,
    MLPSpec,
    MoESpec,
    NormAddSpec,
    NormLinearSpec,
    NormSpec,
    Packed,
    PackedEmbeddingSpec,
    PenaliseSpec,
    Penalties,
    QKNormSpec,
    QuantizeSpec,
    RotarySpec,
    RouteSpec,
    SampleSpec,
    SamplingRows,
    SoftCapSpec,
)
from tessera.quantization import quantised
from tessera.reference.dtypes import torch_dtype

IN_THE_MODELS_DTYPE = frozenset({"rotary"})
"""Ops whose specs do not say the dtype of their activations, though it may be any; what the others take is float32."""


class OpInputs:
    """`OpInputs(tokens, seed).of("linear", spec)`: the positional arguments of the op's hot call, on the host. The same
    seed gives the same ones. ops: whoever is bound there prepares the weights of products, on its device; None: they
    stay raw. dtype: of activations whose spec does not say."""

    def __init__(self, tokens: int, seed: int = 0, ops: BoundOps | None = None, dtype: str = "float32") -> None:
        self.tokens, self.ops, self.dtype = tokens, ops, dtype
        self.random = torch.Generator().manual_seed(seed)

    def of(self, name: str, spec: Any) -> tuple[Any, ...]:
        make: Callable[[Any], tuple[Any, ...]] = getattr(self, f"_{name}")
        return make(spec)

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def _normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=self.random) * scale).to(torch_dtype(dtype))

    def _integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.random, dtype=torch.int32)

    def _uniform(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.tokens, generator=self.random)

    def _tokens_of(self, rows: int, sharded: bool) -> Tensor:
        """sharded: of which two thirds are other ranks'."""
        return self._integers(0, 3 * rows if sharded else rows, self.tokens)

    def _weight(self, spec: LinearSpec) -> Packed:
        shape = (spec.experts, spec.n, spec.k) if spec.experts else (spec.n, spec.k)
        packed = {"weight": self._normal(*shape, dtype=spec.dtype, scale=1 / math.sqrt(spec.k))}
        if spec.bias:
            packed["bias"] = self._normal(spec.n, dtype=spec.dtype)
        if spec.scheme is not None:
            packed.update(quantised(packed.pop("weight"), spec.scheme))
        if self.ops is None:
            return packed
        target = self.ops.device.target
        return self.ops.prepare("linear", spec, {name: tensor.to(target) for name, tensor in packed.items()})

    def _rows(self) -> SamplingRows:
        """Every third row is greedy; each filter is off for some."""
        temperature = torch.where(torch.arange(self.tokens) % 3 == 0, 0.0, self._uniform(0.3, 2.0))
        return SamplingRows(
            temperature=temperature,
            top_k=self._integers(0, 9, self.tokens),
            top_p=torch.where(torch.arange(self.tokens) % 2 == 0, 1.0, self._uniform(0.1, 1.0)),
            min_p=torch.where(torch.arange(self.tokens) % 4 < 2, 0.0, self._uniform(0.0, 0.3)),
            seed=torch.randint(-(2**63), 2**63 - 1, (self.tokens,), generator=self.random),
            position=torch.arange(self.tokens) + 5,
        )

    def _history(self, vocab: int) -> History:
        """A table that knows more rows and columns than are asked for; tokens repeat often."""
        length = 11
        num_tokens = self._integers(0, length + 1, self.tokens)
        return History(
            tokens=self._integers(0, min(vocab, 7), self.tokens + 2, length),
            rows=torch.randperm(self.tokens + 2, generator=self.random)[: self.tokens].to(torch.int32),
            num_prompt_tokens=(num_tokens * torch.rand(self.tokens, generator=self.random)).to(torch.int32),
            num_tokens=num_tokens,
        )

    def _edits(self, vocab: int, prefix: int) -> Edits:
        """Three a row; prefixes are of tokens that histories have."""
        number = 3 * self.tokens
        value = torch.randn(number, generator=self.random)
        tokens, length = self._integers(0, 7, number, prefix), self._integers(0, prefix + 1, number)
        return Edits(
            row=self._integers(0, self.tokens, number),
            token=self._integers(0, vocab, number),
            value=torch.where(torch.arange(number) % 3 == 0, -torch.inf, value),
            until=self._integers(0, 20, number),
            prefix=torch.where(torch.arange(prefix) < prefix - length[:, None], -1, tokens),
        )

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def _embedding(self, spec: EmbeddingSpec) -> tuple[Any, ...]:
        return self._tokens_of(spec.rows, spec.sharded), self._normal(spec.rows, spec.n, dtype=spec.dtype)

    def _packed_embedding(self, spec: PackedEmbeddingSpec) -> tuple[Any, ...]:
        return self._tokens_of(spec.linear.n, spec.sharded), self._weight(spec.linear)

    def _linear(self, spec: LinearSpec) -> tuple[Any, ...]:
        return self._normal(self.tokens, spec.k, dtype=spec.dtype), self._weight(spec)

    def _rms_norm(self, spec: NormSpec) -> tuple[Any, ...]:
        return self._normal(self.tokens, spec.n, dtype=spec.dtype), self._normal(spec.n, dtype=spec.dtype)

    def _rotary(self, spec: RotarySpec) -> tuple[Any, ...]:
        angles = torch.outer(torch.arange(64.0), 100.0 ** -torch.linspace(0, 1, spec.dim // 2))
        q, k = (self._normal(self.tokens, heads, spec.head_dim, dtype=self.dtype) for heads in (6, 2))
        return q, k, self._integers(0, 64, self.tokens), torch.cat((angles.cos(), angles.sin()), dim=-1)

    def _gate(self, spec: GateSpec) -> tuple[Any, ...]:
        return (self._normal(self.tokens, 2 * spec.n, dtype=spec.dtype),)

    def _add_norm(self, spec: AddNormSpec) -> tuple[Any, ...]:
        x, weight = self._rms_norm(spec.norm)
        return x, self._normal(self.tokens, spec.norm.n, dtype=spec.norm.dtype), weight

    def _norm_linear(self, spec: NormLinearSpec) -> tuple[Any, ...]:
        return *self._add_norm(spec.norm), self._weight(spec.linear)

    def _gated_mlp(self, spec: GatedMLPSpec) -> tuple[Any, ...]:
        return *self._linear(spec.gate_up), self._weight(spec.down)

    def _layer_norm(self, spec: LayerNormSpec) -> tuple[Any, ...]:
        return self._normal(self.tokens, spec.n, dtype=spec.dtype), *(
            self._normal(spec.n, dtype=spec.dtype) for _ in range(2)
        )

    def _activation(self, spec: ActivationSpec) -> tuple[Any, ...]:
        return (self._normal(self.tokens, spec.n, dtype=spec.dtype),)

    def _soft_cap(self, spec: SoftCapSpec) -> tuple[Any, ...]:
        return (self._normal(self.tokens, spec.n, dtype=spec.dtype, scale=3.0),)

    def _add(self, spec: AddSpec) -> tuple[Any, ...]:
        return tuple(self._normal(self.tokens, spec.n, dtype=spec.dtype) for _ in range(2))

    def _add_layer_norm(self, spec: AddLayerNormSpec) -> tuple[Any, ...]:
        x, *weights = self._layer_norm(spec.norm)
        return x, self._normal(self.tokens, spec.norm.n, dtype=spec.norm.dtype), *weights

    def _norm_add(self, spec: NormAddSpec) -> tuple[Any, ...]:
        x, weight = self._rms_norm(spec.norm)
        return x, self._normal(self.tokens, spec.norm.n, dtype=spec.norm.dtype), weight

    def _qk_norm(self, spec: QKNormSpec) -> tuple[Any, ...]:
        x = self._normal(self.tokens, spec.q + 2 * spec.k, dtype=spec.dtype)
        return x, self._normal(spec.q, dtype=spec.dtype), self._normal(spec.k, dtype=spec.dtype)

    def _mlp(self, spec: MLPSpec) -> tuple[Any, ...]:
        return *self._linear(spec.up), self._weight(spec.down)

    def _quantize(self, spec: QuantizeSpec) -> tuple[Any, ...]:
        return (self._normal(self.tokens, spec.n, dtype=spec.dtype),)

    def _route(self, spec: RouteSpec) -> tuple[Any, ...]:
        return (self._normal(self.tokens, spec.experts),)

    def _experts(self, spec: ExpertsSpec) -> tuple[Any, ...]:
        experts = spec.gate_up.experts
        order = torch.rand(self.tokens, experts, generator=self.random).argsort(-1)
        ids = (order[:, : spec.top_k] + spec.first).to(torch.int32)
        weights = torch.rand(self.tokens, spec.top_k, generator=self.random)
        x = self._normal(self.tokens, spec.gate_up.k, dtype=spec.gate_up.dtype)
        return x, weights, ids, self._weight(spec.gate_up), self._weight(spec.down)

    def _moe(self, spec: MoESpec) -> tuple[Any, ...]:
        experts = spec.experts
        return *self._linear(spec.router), self._weight(experts.gate_up), self._weight(experts.down)

    def _logprobs(self, spec: LogprobsSpec) -> tuple[Any, ...]:
        return self._normal(self.tokens, spec.vocab, scale=2.0), self._integers(0, spec.vocab, self.tokens)

    def _mask_logits(self, spec: MaskLogitsSpec) -> tuple[Any, ...]:
        words = torch.randint(-(2**31), 2**31, (self.tokens, -(-spec.vocab // 32)), generator=self.random)
        return self._normal(self.tokens, spec.vocab), words.to(torch.int32)

    def _edit_logits(self, spec: EditLogitsSpec) -> tuple[Any, ...]:
        logits = self._normal(self.tokens, spec.vocab)
        return logits, self._history(spec.vocab), self._edits(spec.vocab, spec.prefix)

    def _penalise(self, spec: PenaliseSpec) -> tuple[Any, ...]:
        penalties = Penalties(self._uniform(-2, 2), self._uniform(-2, 2), self._uniform(0.5, 2))
        return self._normal(self.tokens, spec.vocab), self._history(spec.vocab), penalties

    def _sample(self, spec: SampleSpec) -> tuple[Any, ...]:
        return self._normal(self.tokens, spec.vocab, scale=2.0), self._rows()

    def _logits_sample(self, spec: LogitsSampleSpec) -> tuple[Any, ...]:
        return *self._linear(spec.head), self._rows()
