"""Who runs a model on a device: op depth uses core's runner, runner depth brings its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tessera.arrays import Array
from tessera.platform.attention import AttentionBackend, CacheSpec, KVLayout
from tessera.platform.device import Device, Future, Tensor
from tessera.platform.explain import Explained
from tessera.platform.launch import Launch
from tessera.platform.model import Model, ModelFacts
from tessera.platform.ops import OpSet
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.platform.collectives import Communicator


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes granted to this engine on one device: in all, and for the KV cache where the user set it."""

    total: int
    kv: int | None = None


@dataclass(frozen=True)
class CacheNeeds:
    """Of one layer, for the solver: what its backend can do and how many bytes a block of a size takes. layout(block
    size) is its KVLayout."""

    layer: int
    spec: CacheSpec
    block_sizes: tuple[int, ...]
    block_multiple: bool
    index_dtype: str
    host_lengths: str
    align_bytes: int
    layout: Callable[[int], KVLayout]


@dataclass(frozen=True)
class LoadedModel:
    """What load() found: facts, what each layer's cache needs, bytes of weights, bytes left for the cache. device: its
    name, for people. fallbacks: ops and kinds of attention that run on the reference. granted_bytes: of the device, to
    this engine in all. workspace_bytes: that a step and captured graphs may take of them. Both 0 where a runner does
    not say. columns: names of the numbers that features keep for each row, which requests may bring. choices: who does
    what. num_weights: numbers of the checkpoint that the weights stand for; 0 where a runner does not say.
    unsupported: fields of SamplingParams that requests to this runner may not use."""

    facts: ModelFacts
    needs: tuple[CacheNeeds, ...]
    weight_bytes: int
    cache_bytes: int
    device: str = ""
    fallbacks: tuple[str, ...] = ()
    granted_bytes: int = 0
    workspace_bytes: int = 0
    columns: tuple[str, ...] = ()
    choices: tuple[Explained, ...] = ()
    num_weights: int = 0
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share block tables. block_size: tokens a block; 0 for a group of StateSpec, which has one block a
    request. block_bytes: of all its layers."""

    layers: tuple[int, ...]
    kind: str  # "paged", "window" or "state"
    block_size: int
    block_bytes: int
    num_blocks: int
    window: int | None = None

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return 1 if self.kind == "state" else -(-tokens // self.block_size)

    def first_seen(self, position: int) -> int:
        """The first block that a token at this position sees; no later one sees what is before it."""
        return 0 if self.window is None else max(position - self.window + 1, 0) // self.block_size

    def most_held(self, tokens: int, ahead: int) -> int:
        """Blocks that a request of so many tokens holds at most at once, where up to `ahead` of them are computed
        before the blocks behind a window are given back."""
        if self.window is None:
            return self.blocks_of(tokens)
        return min(self.blocks_of(tokens), (self.window + ahead - 3) // self.block_size + 2)


@dataclass(frozen=True)
class CachePlan:
    """The solved cache. layouts: by layer. Block 0 of every group is null. num_rows: rows of the runner's state;
    max_tokens of each."""

    groups: tuple[CacheGroup, ...]
    num_rows: int
    max_model_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit beside each other, as the tightest group that keeps all of them has room; groups with a
        window count where there is no other."""
        growing = [group for group in self.groups if group.kind != "state"]
        counted = [group for group in growing if group.window is None] or growing
        return min(((group.num_blocks - 1) * group.block_size for group in counted), default=0)

    @property
    def nbytes(self) -> int:
        return sum(group.block_bytes * group.num_blocks for group in self.groups)

    def num_requests(self, tokens: int) -> int:
        """Requests of so many tokens that fit beside each other; block 0 of each group is null."""
        return min(((group.num_blocks - 1) // group.blocks_of(tokens) for group in self.groups), default=0)


@dataclass(frozen=True)
class Progress:
    """Something long is under way: done of total, in units of the phase."""

    phase: str
    done: int
    total: int


class ModelRunner(ABC):
    """On one device: SchedulerOutput to token ids. Steps come in order; what a step touches is owned until its output
    was taken."""

    @abstractmethod
    def load(self, budget: MemoryBudget) -> LoadedModel:
        """Builds the model and loads its weights. budget: bytes of the device that are the engine's. Called
        once, first. Raises RefusedError for a model that it cannot run, MemoryBudgetError where it does not fit,
        ModelError for files that are broken, PlatformError for what the device lacks; each says what to do."""

    @abstractmethod
    def allocate(self, plan: CachePlan) -> None:
        """Takes the memory of the cache, as solved from LoadedModel.needs. Called once, after load()."""

    @abstractmethod
    def warm_up(self, report: Callable[[Progress], None]) -> None:
        """Compiles, captures and tunes all that a step may need, so that no step does. report: called as each part is
        done. Called once, after allocate()."""

    @abstractmethod
    def execute(self, step: SchedulerOutput) -> Any:
        """Launches the forward; what it returns is given to sample()."""

    @abstractmethod
    def sample(self, pending: Any) -> Future[StepOutput]:
        """Launches sampling of the step that execute() returned `pending` for."""


@dataclass(frozen=True)
class Column:
    """A number a feature keeps for each row: default where a request brings none."""

    name: str
    dtype: str
    default: float = 0.0


class Feature(Protocol):
    """LoRA, speculation, structured output, multimodal input: composed in one list, absent when off."""

    def columns(self) -> Sequence[Column]:
        """Numbers that it keeps for each row, which a launch brings as Launch.columns. Names are the feature's
        own."""

    def cache_specs(self) -> Sequence[CacheSpec]:
        """What it keeps in the cache besides the model's layers."""

    def wrap(self, model: Model) -> Model:
        """The model with the feature in it. Called once, at load."""

    def keys(self) -> frozenset[str]:
        """Bits in the launch key."""

    def before(self, launch: Launch) -> None:
        """Before the forward of each launch; may write into the launch's tensors, not move them. Not into rows,
        query_start_loc, query_lens, logits_indices and block_tables, which the next launch may have as they are."""

    def logits(self, launch: Launch, logits: Tensor) -> Tensor:
        """logits [S, vocabulary] of a launch -> those to sample from, of the same shape and dtype."""

    def after(self, launch: Launch, sampled: Tensor) -> None:
        """sampled [S] int32: the tokens drawn, on the device."""


class RowSampling(Protocol):
    """Sampling parameters by row, as host arrays."""

    @property
    def temperature(self) -> Array: ...
    @property
    def top_k(self) -> Array: ...
    @property
    def top_p(self) -> Array: ...
    @property
    def min_p(self) -> Array: ...
    @property
    def seed(self) -> Array: ...


class InputBatch(Protocol):
    """Rows of requests as host arrays, kept up to date by apply(). tokens [rows, max_model_len + 1] int32; tables by
    group [rows, blocks] int32."""

    @property
    def tokens(self) -> Array: ...
    @property
    def tables(self) -> Sequence[Array]: ...
    @property
    def sampling(self) -> RowSampling: ...
    @property
    def columns(self) -> Mapping[str, Array]: ...
    def apply(self, step: SchedulerOutput) -> None:
        """Takes in a step: requests that start, tokens and blocks that came, rows that ended. Once a step,
        before it is run."""


class HostSampled(NamedTuple):
    """tokens [S] int32. logprobs: of the rows whose requests want log probabilities, for StepOutput."""

    tokens: Array
    logprobs: list[RowLogprobs]


class HostSampler(Protocol):
    """Samples from host logits [S, vocabulary] of rows [S], whose next tokens have these positions [S]: masked, edited
    and penalised as the requests say."""

    def __call__(self, logits: Tensor, batch: InputBatch, rows: Array, positions: Array) -> HostSampled: ...


class RunnerServices(Protocol):
    """What core hands to a runner, so that a platform imports nothing above tessera.platform."""

    config: EngineConfig
    groups: Mapping[str, Communicator]
    device: Device

    def reference(self) -> OpSet:
        """Core's ops and those that plugins bring, for the platform to put its kernels in."""

    def build_model(self, ops: OpSet, backends: Sequence[AttentionBackend]) -> Model:
        """Core's model of the checkpoint, over these ops, each attention layer bound to the first backend that
        supports it. Raises ModelError for an architecture that core does not have."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors of the checkpoint on the host, by their names in it."""

    def checkpoint(self) -> Mapping[str, Any]:
        """The model's own configuration (config.json)."""

    def input_batch(self, plan: CachePlan) -> InputBatch:
        """Rows of requests as host arrays for this plan; apply() them every step."""

    def features(self) -> Sequence[Feature]:
        """Those that are on, in the order in which they are applied."""

    def sampler(self) -> HostSampler:
        """Core's reference sampler, for logits on the host. Ask for it in load(): raises PlatformError where
        --no-fallback forbids it."""
