"""The context for building a model (bound ops, this rank's shard, attention backends) and what building it collects:
parameters and attention layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor

from tessera.config.mesh import Axis
from tessera.config.pooler import PoolerConfig
from tessera.errors import ModelError, PlatformError, RefusedError
from tessera.layers.rotary import AxisTable
from tessera.layers.weights import Parameter
from tessera.platform.attention import (
    Caches,
    FullAttentionSpec,
    LatentSpec,
    Mixer,
    MixerBackend,
    MixerSpec,
    SlidingWindowSpec,
)
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device, Reason
from tessera.platform.feature import Column
from tessera.platform.launch import Launch
from tessera.platform.model import LayerCache, Product
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import KV_INT8, QuantSpec
from tessera.quantization.weights import NotQuantized, Weights

TENSOR_GROUP: Axis = "tensor"
PIPELINE_GROUP: Axis = "pipeline"
EXPERT_GROUP: Axis = "expert"


@dataclass(frozen=True)
class BoundMixer:
    """A bound layer. declined: backends that were asked first, each with its reason for declining."""

    spec: MixerSpec
    backend: MixerBackend[Any]
    mixer: Mixer
    declined: tuple[tuple[str, Reason], ...] = ()


class TokenPredictor(Protocol):
    """The layer of a model that predicts further tokens (multi-token prediction, arXiv:2412.19437, section 2.2)."""

    # the numbers of its mixers
    layers: Collection[int]

    def attend(self, embedded: Tensor, hidden: Tensor, launch: Launch, caches: Caches) -> Sequence[Tensor]:
        """The part in which tokens interact. embedded [T, hidden size]: the embedding of the token after each one, as
        Model.embed() gives it. hidden [T, hidden size]: each token's state, as Model.finish() gives it, or as
        transform() did. Returns the inputs of transform(), [T, ...] each."""

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The rest, in which each token is computed on its own: what the head makes logits of, and the state that the
        layer goes on from if it predicts one more token, [n, hidden size] each."""


class Stored(Protocol):
    """What a checkpoint holds, as far as the form of a model depends on it."""

    def differ(self, names: Sequence[str], dtype: str) -> bool:
        """Whether it holds several of these weights, and not all with the same values in `dtype`."""

    def holds(self, name: str) -> bool:
        """Whether there is a weight of this name."""

    def names(self) -> Iterable[str]:
        """Of all weights, or of none where any name is held."""


class Build:
    """The context of one model on one rank."""

    def __init__(
        self,
        ops: BoundOps,
        device: Device,
        dtype: str,
        backends: Sequence[MixerBackend[Any]],  # in order of preference
        # By axis of the mesh of workers; an axis without a group has one worker.
        groups: Mapping[str, Communicator] | None = None,
        weights: Weights | None = None,  # how the weights of linear layers are quantized
        kv: QuantSpec | None = None,  # how keys and values are quantized; None keeps them in dtype
        split: Callable[[Mixer], Mixer] = lambda mixer: mixer,  # a mixer as models call it (GraphRunner.split)
        stored: Stored | None = None,  # the checkpoint, if there is one
        pooler: PoolerConfig | None = None,  # how the model pools; None: it only generates
        generates: bool = True,  # whether it needs a head that tokens are sampled from
        modalities: Sequence[str] = (),  # what its prompts may hold beside text
        spare_positions: int = 0,  # rows behind a rotary table for tokens with several positions each, if there are any
        prefix: bool = False,  # whether all tokens of a prompt see each other
        most_sources: int = 0,  # positions that a request's tokens see through cross attention at most
        predicts: bool = False,  # whether the layer that predicts further tokens is wanted
    ) -> None:
        self.ops, self.device, self.dtype, self.backends = ops, device, dtype, backends
        self.group = (groups or {}).get(TENSOR_GROUP) or Alone()
        self.pipeline = (groups or {}).get(PIPELINE_GROUP) or Alone()
        self.expert_group = (groups or {}).get(EXPERT_GROUP) or Alone()
        self.weights: Weights = weights or NotQuantized()
        self.kv, self.split, self.stored = kv, split, stored
        self.pooler, self.generates, self.modalities = pooler, generates, modalities
        # Lines about the model, to say at start-up.
        self.notes: list[str] = [] if pooler is None else [*pooler.notes]
        self.columns: list[Column] = []  # of the input batch, which the model reads beside the tokens
        self.spare_positions, self.prefix, self.most_sources = spare_positions, prefix, most_sources
        self.predicts = predicts
        self.predictor: TokenPredictor | None = None  # that layer, once it is built
        self.axis_tables: list[AxisTable] = []  # those with such rows
        self.parameters: list[Parameter] = []
        self.tower_parameters: list[Parameter] = []  # those of them that a tower's code reads, op by op
        self.mixers: list[BoundMixer] = []  # layers in the order in which they were bound, which is their number
        self.first_layer = 0  # the model's number of the first of them
        self.products: list[Product] = []  # linear layers, without those of experts and the head
        self.fallbacks: Counter[str] = Counter()  # number of layers of each kind that run on the reference

    @property
    def reduce(self) -> str | None:
        """The group over which partial sums are reduced; None for a single rank."""
        return TENSOR_GROUP if self.group.size > 1 else None

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.pipeline.rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes logits."""
        return self.pipeline.rank == self.pipeline.size - 1

    def are_one(self, names: Sequence[str]) -> bool:
        """Whether weights that config.json ties are one. They are not if the checkpoint holds several of them with
        different values: as in transformers, the file is believed, and a note says so. names: that they may have in the
        checkpoint."""
        if self.stored is None or not self.stored.differ(names, self.dtype):
            return True
        self.notes.append(
            "config.json ties the head to the embedding (tie_word_embeddings), but the checkpoint holds both with "
            "different values; the head is read from the checkpoint"
        )
        return False

    def base(self, names: Sequence[str], tensor: str) -> str:
        """What a checkpoint has in front of the weights of a model without its head: one of `names` and a dot, or
        nothing if it was saved without a head. tensor: a weight that every such model has."""
        if self.stored is None:
            return f"{names[0]}."
        return next((f"{name}." for name in names if self.stored.holds(f"{name}.{tensor}")), "")

    def layers(self, number: int) -> range:
        """Which of the model's layers this pipeline stage has: all, if there is one stage. If they do not divide
        evenly, the first stages have one more, since the last one also has the head. Raises ModelError."""
        ends = [*self.first_layers(number), number]
        self.first_layer = ends[self.pipeline.rank]
        return range(self.first_layer, ends[self.pipeline.rank + 1])

    def first_layers(self, number: int) -> list[int]:
        """The first layer of each pipeline stage, as layers() divides them. Raises ModelError."""
        stages = self.pipeline.size
        if number < stages:
            raise ModelError(f"the model has {number} layers, which is fewer than --pipeline-parallel-size {stages}.")
        return _firsts(number, stages)

    def experts(self, number: int) -> range:
        """Which of a layer's experts this rank has whole. If they do not divide evenly, the first ranks have one more.
        Raises ModelError."""
        ranks = self.expert_group.size
        if number < ranks:
            raise ModelError(
                f"the model has {number} experts, which is fewer than --tensor-parallel-size {ranks}; remove "
                "--enable-expert-parallel."
            )
        ends = [*_firsts(number, ranks), number]
        own = [range(*pair) for pair in pairwise(ends)]
        sizes = dict.fromkeys(str(len(experts)) for experts in own)
        note = f"each device has {' or '.join(sizes)} of a layer's {number} experts (--enable-expert-parallel)"
        if ranks > 1 and note not in self.notes:
            self.notes.append(note)
        return own[self.expert_group.rank]

    def register_parameter(self, parameter: Parameter) -> Parameter:
        self.parameters.append(parameter)
        return parameter

    @property
    def caches(self) -> tuple[LayerCache, ...]:
        """ModelFacts.caches of the layers bound so far."""
        kept = ((bound.spec.layer, bound.spec.cache) for bound in self.mixers)
        return tuple(LayerCache(layer, cache) for layer, cache in kept if cache is not None)

    def cache(self, kv_heads: int, head_dim: int, window: int | None) -> FullAttentionSpec:
        """The cache of an attention layer."""
        shape = kv_heads, head_dim, self.dtype if self.kv is None else self.kv.dtype, self.kv
        return FullAttentionSpec(*shape) if window is None else SlidingWindowSpec(*shape, window=window)

    def latent_cache(self, rank: int, rope_dim: int) -> LatentSpec:
        """The cache of a layer of latent attention, which is not quantized: where the checkpoint wants that, a note
        says so. Raises RefusedError where --kv-cache-dtype does."""
        if self.kv is not None and self.weights.kv is None:
            raise RefusedError(
                f"--kv-cache-dtype {self.kv.dtype} is not supported for latent attention, whose cache is kept in "
                f"{self.dtype}; remove the flag."
            )
        if self.kv is not None and _LATENT_NOTE not in self.notes:
            self.notes.append(_LATENT_NOTE)
        return LatentSpec(rank, rope_dim, self.dtype)

    def shard(self, size: int, what: str) -> tuple[int, int]:
        """This rank's part of `size` things, as (start, stop). Raises ModelError if they do not divide evenly."""
        ranks = self.group.size
        if size % ranks:
            raise ModelError(f"{what} ({size}) is not divisible by --tensor-parallel-size {ranks}.")
        each = size // ranks
        return self.group.rank * each, (self.group.rank + 1) * each

    def mixer(self, spec: MixerSpec, weights: Mapping[str, Tensor]) -> Mixer:
        """Binds the layer to the first backend that supports it. weights may be filled until the model is loaded.
        Raises PlatformError if there is none, or only the reference and a flag forbids that."""
        declined: list[tuple[str, Reason]] = []
        for backend in self.backends:
            if not backend.handles(spec):
                continue
            reason = backend.supports(spec)
            if reason is None:
                if backend.fallback:
                    self._fall_back(spec, declined)
                mixer = backend.bind(spec, weights, self.ops, self.device)
                self.mixers.append(BoundMixer(spec, backend, mixer, tuple(declined)))
                return self.split(mixer)
            declined.append((backend.name, reason))
        raise PlatformError(f"no attention backend supports {self._place(spec)} ({_reasons(declined)}).")

    def _place(self, spec: MixerSpec) -> str:
        return f"layer {self.first_layer + spec.layer}"

    def _fall_back(self, spec: MixerSpec, declined: Sequence[tuple[str, Reason]]) -> None:
        if self.kv == KV_INT8 and declined and isinstance(spec.cache, FullAttentionSpec):
            raise PlatformError(
                f"--kv-cache-dtype {KV_INT8.dtype} is not supported here: {self._place(spec)} ({spec.place}) "
                f"would run on the reference ({_reasons(declined)}); remove the flag."
            )
        if self.ops.no_fallback:
            reasons = _reasons(declined) if declined else "the platform has no backend of its own"
            raise PlatformError(
                f"{spec.kind} of {self._place(spec)} ({spec.place}) would run on the reference ({reasons}), "
                "which --no-fallback forbids; give it a backend, or remove the flag."
            )
        self.fallbacks[spec.kind] += 1


def _firsts(number: int, ranks: int) -> list[int]:
    """The first of each rank's things, of `number` that are divided in order; the first ranks have one more."""
    each, more = divmod(number, ranks)
    return [rank * each + min(rank, more) for rank in range(ranks)]


_LATENT_NOTE = "the cache of latent attention is not quantized, although the checkpoint has scales for it"


def _reasons(declined: Sequence[tuple[str, Reason]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in declined)
