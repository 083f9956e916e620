"""Model runners: at op depth a platform uses core's, at runner depth it brings its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import lcm
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tessera.arrays import Array
from tessera.platform.artifacts import Artifacts
from tessera.platform.attention import MixerBackend
from tessera.platform.device import Device, Future, Tensor
from tessera.platform.feature import WorkerFeature
from tessera.platform.loaded_model import LoadedModel, MemoryBudget
from tessera.platform.lora import LoraWeights
from tessera.platform.model import Model, ModelFacts
from tessera.platform.ops import OpSet
from tessera.platform.quantization import ReadWeight
from tessera.platform.transfer import TokenStore
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, TokenMasks

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.platform.collectives import Communicator


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share block tables."""

    layers: tuple[int, ...]
    # "paged", "window", "state" or "cross"
    kind: str
    # tokens of a block; 0 for a group of StateSpec, each of whose blocks holds a state
    block_size: int
    # bytes of a block, all layers together
    block_bytes: int
    # the null block among them
    num_blocks: int
    # tokens that a query sees, itself included; None: all before it
    window: int | None = None
    # the most positions of a request's encoder, for a group of CrossSpec, whose blocks hold those and no tokens
    length: int = 0
    # blocks of a request in a group of StateSpec: one, and one more for each draft that a step may verify
    states: int = 1

    @property
    def grows(self) -> bool:
        """Whether a request needs more of its blocks the more tokens it has."""
        return self.kind not in ("state", "cross")

    def blocks_of(self, tokens: int) -> int:
        """Blocks needed for this many tokens; of a group of CrossSpec, for the longest encoder."""
        if self.kind == "state":
            return self.states
        return -(-(tokens if self.grows else self.length) // self.block_size)

    def first_seen(self, position: int) -> int:
        """The first block that a token at this position sees. Later tokens do not see earlier blocks either."""
        return 0 if self.window is None else max(position - self.window + 1, 0) // self.block_size

    def most_held(self, tokens: int, ahead: int) -> int:
        """The most blocks that a request of this many tokens holds at once, if up to `ahead` of its tokens are computed
        before blocks that left the window are freed."""
        if self.window is None:
            return self.blocks_of(tokens)
        return min(self.blocks_of(tokens), (self.window + ahead - 3) // self.block_size + 2)


STATE_UNIT = 16
"""Tokens of a unit where no group grows with tokens."""


def unit_of(groups: Sequence[CacheGroup]) -> int:
    """Tokens of a unit: what begins and ends in whole blocks of all groups. States are copied at its borders."""
    return lcm(*(group.block_size for group in groups if group.grows)) if any(g.grows for g in groups) else STATE_UNIT


@dataclass(frozen=True)
class CachePlan:
    """The solved cache. Block 0 of every group is the null block. num_rows: rows of the runner's state. max_model_len:
    most tokens of a row."""

    groups: tuple[CacheGroup, ...]
    num_rows: int
    max_model_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit into the cache together: as many as fit into the smallest group that keeps all tokens. Groups
        with a window count only if there is no other."""
        growing = [group for group in self.groups if group.grows]
        counted = [group for group in growing if group.window is None] or growing
        return min(((group.num_blocks - 1) * group.block_size for group in counted), default=0)

    @property
    def nbytes(self) -> int:
        return sum(group.block_bytes * group.num_blocks for group in self.groups)

    def num_requests(self, tokens: int) -> int:
        """How many requests of this many tokens fit into the cache together; block 0 of each group is not used. As many
        as there are rows, if nothing is kept."""
        counts = (
            self.num_rows if group.kind == "state" else (group.num_blocks - 1) // group.blocks_of(tokens)
            for group in self.groups
        )
        return min(counts, default=self.num_rows)


@dataclass(frozen=True)
class Progress:
    """Progress of a long phase: done of total, in units of the phase."""

    phase: str
    done: int
    total: int


RUNNER_TAKES: Mapping[str, str] = MappingProxyType(
    {
        "quantization": "--quantization and quantized checkpoints: weights come from RunnerServices.stored_weights()",
        "kv_cache_dtype": "--kv-cache-dtype: config.cache.dtype; LoadedModel.needs has the layouts",
        "check_kv_cache": "--check-kv-cache: config.cache.check; the runner keeps a record of its own",
        "lora": (
            "--enable-lora: the feature's worker half is in the model of RunnerServices.build_model(); without it, "
            "RowOpened.feature_args['lora'] is the folder that RunnerServices.lora_weights() reads for a row; "
            "LoadedModel.linear_layers must name the layers that they may change"
        ),
        "drafts": (
            "--speculative-config: SchedulerOutput.drafts, a token sampled at each position, StepOutput.counts; "
            "tessera.platform has write_drafts(), sampled_at() and step_output(); the state of a row is in the first "
            "block of its table, and in a step with drafts the state behind token i of the row goes into block i"
        ),
        "pooling": (
            "models that answer with numbers: RowOpened.pooling; a row that has it samples nothing, and "
            "StepOutput.pooled has what the heads in Model.pooling make of its prompt once it is computed"
        ),
        "media": (
            "images and sounds in prompts: the feature's worker half makes features in WorkerFeature.begin(), by code "
            "that runs op by op where Device.target is; WorkerFeature.tensors() holds them, and token_columns() and "
            "positions() say what a launch's tokens stand for"
        ),
        "expert_parallel": (
            "--enable-expert-parallel: RunnerServices.groups['expert'], whose workers divide the experts of "
            "RunnerServices.build_model()'s model"
        ),
        "stages": (
            "--pipeline-parallel-size: RunnerServices.groups['pipeline']; each stage names its own layers in "
            "LoadedModel.needs"
        ),
    }
)
"""What a model runner may take (ModelRunner.takes), and how it reaches the runner."""


class ModelRunner(ABC):
    """Runs a model on the devices of one worker: from SchedulerOutput to token ids. Steps arrive in order. What a step
    reads and writes stays reserved for it until its output has been taken.

    takes: names of RUNNER_TAKES, for a platform's own runner; core refuses what it does not take when it starts.
    Default: none of them."""

    takes: frozenset[str] = frozenset()

    @abstractmethod
    def load(self, budget: MemoryBudget) -> LoadedModel:
        """Builds the model and loads its weights. Called once, first. budget: bytes of the device that this engine may
        use. Raises RefusedError for a model that it cannot run, MemoryBudgetError if the model does not fit, ModelError
        for broken files, PlatformError for something that the device lacks. Each says what to do."""

    @abstractmethod
    def allocate(self, plan: CachePlan) -> None:
        """Allocates the KV cache, as solved from LoadedModel.needs. Called once, after load()."""

    @abstractmethod
    def warm_up(self, report: Callable[[Progress], None]) -> None:
        """Compiles, captures and tunes everything that a step may need, so that no step has to. Called once, after
        allocate(). report: called whenever a part is done."""

    @abstractmethod
    def execute(self, step: SchedulerOutput) -> Any:
        """Launches the forward pass. The result is passed to sample()."""

    @abstractmethod
    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        """Launches sampling for a step. pending: what execute() returned for it. masks: rows that may sample only
        some tokens; None if every row may sample any. A runner that cannot apply masks names structured_outputs in
        LoadedModel.unsupported, and never gets any. In a worker process, another thread waits for the output while the
        main thread launches the next step."""

    def token_store(self) -> TokenStore | None:
        """What reads and writes the KV cache for transfers between engines; called after allocate(). None if it cannot
        be read by tokens. Default: None."""
        return None


class RowEdits(Protocol):
    """Edits of the logits of one row, with the fields of the op edit_logits: token, until [E] int32, value [E] float32,
    prefix [E, P] int32."""

    @property
    def token(self) -> Array: ...
    @property
    def value(self) -> Array: ...
    @property
    def until(self) -> Array: ...
    @property
    def prefix(self) -> Array: ...


class RowSampling(Protocol):
    """Sampling parameters by row, as host arrays. seed [rows, 2] int32. logprobs int32: how many of the most likely
    tokens are wanted beside the sampled one, -1 for no log probabilities. edits, masks, scored: of the rows that have
    any: edits (logit_bias, bad words, min_tokens), the bits of allowed_token_ids as in TokenMasks, the tokens of
    logprob_token_ids."""

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
    @property
    def presence_penalty(self) -> Array: ...
    @property
    def frequency_penalty(self) -> Array: ...
    @property
    def repetition_penalty(self) -> Array: ...
    @property
    def num_prompt_tokens(self) -> Array: ...
    @property
    def logprobs(self) -> Array: ...
    @property
    def edits(self) -> Mapping[int, RowEdits]: ...
    @property
    def masks(self) -> Mapping[int, Array]: ...
    @property
    def scored(self) -> Mapping[int, Array]: ...


class InputBatch(Protocol):
    """The rows of requests as host arrays, which apply() keeps up to date. tokens [rows, max_model_len + 1] int32.
    tables: by group [rows, blocks] int32."""

    @property
    def tokens(self) -> Array: ...
    @property
    def tables(self) -> Sequence[Array]: ...
    @property
    def sampling(self) -> RowSampling: ...
    @property
    def columns(self) -> Mapping[str, Array]: ...
    def apply(self, step: SchedulerOutput) -> None:
        """Updates the rows for a step: new requests, new tokens and blocks, finished rows. Call it once per step,
        before running the step."""


class HostSampled(NamedTuple):
    """tokens [S] int32: the sampled tokens. logprobs: for StepOutput, of rows whose requests want log probabilities."""

    tokens: Array
    logprobs: list[RowLogprobs]


class HostSampler(Protocol):
    """Samples from host logits [S, vocabulary], after masks, logit edits and penalties as the requests ask. rows [S]:
    the rows of the batch; a row with drafts comes once for each position, in order. positions [S]: of the tokens to
    sample. masks: what sample() was given."""

    def __call__(
        self, logits: Tensor, batch: InputBatch, rows: Array, positions: Array, masks: TokenMasks | None = None
    ) -> HostSampled: ...


class RunnerServices(Protocol):
    """What core provides to a runner, so that a platform imports only tessera.platform."""

    config: EngineConfig
    # By axis of the mesh of workers, such as "tensor"; of one worker, where nothing is divided along the axis.
    groups: Mapping[str, Communicator]
    # The first of `devices`.
    device: Device
    # All of this worker's, in the order of WorkerSpec.devices.
    devices: Sequence[Device]
    # A cache on disk for compiled programs, the same as the devices have.
    artifacts: Artifacts

    def reference(self) -> OpSet:
        """Core's ops and those of plugins, to which the platform adds its kernels."""

    def build_model(self, ops: OpSet, backends: Sequence[MixerBackend[Any]]) -> Model:
        """Core's model of the checkpoint, built on these ops. Each attention layer is bound to the first backend that
        supports it. Its linear layers are quantized as --quantization or the checkpoint says, which a runner must
        `take`. Raises ModelError for an architecture that core does not have."""

    def load_weights(self, place: Callable[[str, str, Tensor], Tensor]) -> Sequence[MutableMapping[str, Tensor]]:
        """Loads the weights of the model that build_model() built, one after the other: read, joined, converted and
        prepared by their ops on `device`. place: called with the checkpoint's name of a layer (of the first one, if
        several are joined), the name of a part of its weight ("weight", "bias", those of a scheme) and the tensor; the
        model keeps what it returns, so a runner moves weights to where its library has them. It is called once for a
        tensor that two layers share, and not for the weights of a tower, whose code runs op by op where `device`
        has them. Returns each of the others as the mapping in which the model looks its parts up whenever
        it is called: a runner that traces the model as a function of its weights exchanges them there. Raises
        ModelError for broken files."""

    def linear_layers(self) -> Mapping[str, tuple[int, int]]:
        """LoadedModel.linear_layers of the model that build_model() built."""

    def accept(self, facts: ModelFacts) -> None:
        """Fills the platform's defaults for this model into `config`, and asks Platform.check. Call it in load() as
        soon as the facts are known, before weights are read; core calls it after load() if the runner did not. Further
        calls do nothing. Raises RefusedError with all problems, one a line."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The names and tensors of the checkpoint as stored, unsharded, on the host. For a runner that takes
        quantization, stored_weights() is used instead."""

    def stored_weights(self, linear_layers: Mapping[str, tuple[int, int]]) -> Iterator[ReadWeight]:
        """All weights of the checkpoint, one at a time, unsharded, on the host. linear_layers: inputs and outputs of
        the model's linear layers by name, as in LoadedModel.linear_layers. Their weights come first: with the Scheme of
        the checkpoint or of --quantization and its parts, or, where neither quantizes a layer, with None and the weight
        in the model's dtype; so is a weight whose scheme Platform.scheme does not accept, which is decoded. All other
        tensors are as stored. Raises ModelError for a layer that the checkpoint lacks, PlatformError for --load-format
        dummy."""

    def lora_weights(self, folder: str) -> LoraWeights:
        """Reads what RowOpened.feature_args["lora"] names, for a runner that takes lora. Raises ModelError if it is
        broken."""

    def checkpoint(self) -> Mapping[str, Any]:
        """The model's own configuration (config.json). tie_word_embeddings is false if the weights have a head of their
        own, "lm_head.weight"."""

    def input_batch(self, plan: CachePlan) -> InputBatch:
        """The rows of requests as host arrays, for this plan. Call its apply() in every step."""

    def features(self) -> Sequence[WorkerFeature]:
        """The enabled features, in the order in which they apply."""

    def sampler(self) -> HostSampler:
        """Core's reference sampler, for logits on the host. Call this in load(). Raises PlatformError if --no-fallback
        forbids it."""
