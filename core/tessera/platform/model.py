"""A model, as the code that runs it sees it: its caches, its steps from token ids to logits, and facts about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tessera.platform.attention import Caches, CacheSpec
from tessera.platform.device import Tensor
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed

if TYPE_CHECKING:
    from tessera.ops.linear import LinearSpec
    from tessera.ops.sampling import LogitsSampleSpec, SampleSpec


@dataclass(frozen=True)
class LayerCache:
    """The cache of a layer. layer: its number among all layers of the model (of the pipeline stage) that mix
    tokens."""

    layer: int
    spec: CacheSpec


@dataclass(frozen=True)
class ModelFacts:
    """What the scheduler and a platform need to know about a model."""

    # as in config.json
    architecture: str
    # entries of the head
    vocab_size: int
    # elements of a hidden state
    hidden_size: int
    # of all stages
    num_layers: int
    # longest sequence, in tokens
    max_positions: int
    # of weights and activations
    dtype: str
    # of the layers of this worker's pipeline stage that have one
    caches: tuple[LayerCache, ...]
    # whether a prompt may be split anywhere
    chunkable: bool = True
    # whether the cache of a prefix is addressed by block
    prefix_cacheable: bool = True
    # decisions made when the model was built, one line each
    notes: tuple[str, ...] = ()
    # tensors [T, hidden_size] of dtype that a pipeline stage passes to the next; 0: the model cannot be divided into
    # stages
    stage_tensors: int = 0
    # whether it has a head that tokens are sampled from
    generates: bool = True
    # whether it computes with nothing but ops, mixers and views, on the weights that RunnerServices.load_weights()
    # returns, so that a runner may trace it as a function of them
    functional: bool = True
    # of a layer, where layers have experts
    num_experts: int = 0


@dataclass(frozen=True)
class ProductLayer:
    """A linear layer of the checkpoint."""

    # in the checkpoint
    name: str
    # inputs over all ranks
    k: int
    # outputs over all ranks
    n: int
    # those that this rank has, in the order in which the product has them
    outputs: Sequence[int]
    # those that this rank has: (start, stop)
    inputs: tuple[int, int]


@dataclass(frozen=True)
class Product:
    """One `linear` of a built model: this rank's part of one or several layers, joined by their outputs. attach: from
    then on, the weight in the hot call is Attached, with this object."""

    spec: LinearSpec
    layers: tuple[ProductLayer, ...]
    attach: Callable[[Any], None]


@dataclass
class Hidden:
    """Hidden states. last [S, hidden]: of the tokens that a launch returns, the input of the head, before the final
    norm if the head includes it; residual likewise. What a pipeline stage passes to the next one has all tokens [T,
    hidden]."""

    last: Tensor
    residual: Tensor | None = None


class SamplingHead(Protocol):
    """Computes logits from hidden states, so that head and sampling can run as one composite."""

    def sampling_spec(self, sample: SampleSpec) -> LogitsSampleSpec:
        """The spec of the op logits_sample for this head."""

    @property
    def weight(self) -> Packed: ...


class PoolingHead(Protocol):
    """Makes numbers of a text's hidden states, for one task of requests."""

    # which states of a text it takes, a Pooling of config/pooler.py; "all": those of every token
    pooling: str

    def each(self, states: Tensor) -> Tensor:
        """[T, hidden] -> [T, width]: what is done with the state of each token before they are pooled."""

    def __call__(self, pooled: Tensor) -> Tensor:
        """[n, width] float32, the pooled states of n texts (of n tokens, if it takes "all") -> [n, numbers] float32,
        without the activation that a request may turn off."""


class Model(Protocol):
    """A model, or the layers of it that a pipeline stage has: the first stage embeds, the last one has the final norm
    and the head. Between token ids and logits it calls only ops, mixers, views and Launch.select_logits()."""

    facts: ModelFacts

    @property
    def pooling(self) -> Mapping[str, PoolingHead]:
        """By the tasks that requests may have (PoolingTask); {} on all pipeline stages but the last. Only looked at
        where the configuration has a pooler."""

    @property
    def head(self) -> SamplingHead:
        """Only where ModelFacts.generates."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [T] -> embeddings [T, hidden]."""

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        """Runs x [T, hidden] from embed() through all layers and writes keys and values into caches. Returns the hidden
        states of the tokens that the launch returns; for other tokens the last layer may compute only keys and values.
        On a later pipeline stage x and residual are what the stage before returned, which are the states of all
        tokens."""

    def finish(self, hidden: Hidden) -> Tensor:
        """Applies the final norm to the result of forward(): [S, hidden]."""

    def logits(self, rows: Tensor) -> Tensor:
        """Hidden states [S, hidden] -> logits [S, vocabulary], of the model's dtype."""
