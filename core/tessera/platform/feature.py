"""Features: what requests may ask for beyond the model itself, such as masks, LoRA or drafts.

A feature has up to two halves: one in the engine's process, which decides, and one in each worker, which computes. The
registry's table of features leads to a Feature, which names both. Only features that `--features` names are created;
of the others nothing exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.device import Arena, Tensor
from tessera.platform.launch import Launch, LaunchRows, Resource
from tessera.platform.model import Model, Product
from tessera.platform.ops import BoundOps, Wrapper

if TYPE_CHECKING:
    from tessera.platform.loaded_model import LoadedModel
    from tessera.request import Request
    from tessera.step import RowOpened, SchedulerOutput


@dataclass(frozen=True)
class Feature:
    """engine, worker: dotted paths of the factories of its halves, (config: EngineConfig, option: str) ->
    EngineFeature, WorkerFeature; "" if it has no such half. option: the text after the = in `--features NAME=OPTION`,
    "" if there is none. A factory raises ConfigError for an option that it does not accept."""

    engine: str = ""
    worker: str = ""


# ---- in the engine's process

FailureReason = Literal["dead_end", "too_complex", "nothing_allowed"]
"""dead_end: the answer cannot be completed from here. too_complex: computing what may follow takes too much time or
memory. nothing_allowed: the fields of the request together allow no token."""


@dataclass(frozen=True)
class Failure:
    """Why a request cannot go on, for a cause of its own. message: one line for its client, which says what to do."""

    reason: FailureReason
    message: str


class FeatureCounter(msgspec.Struct, frozen=True, array_like=True):
    """A total since the engine started, which the server's metrics show."""

    # vLLM's where it counts the same, without a prefix.
    name: str
    # One sentence.
    documentation: str
    # Never less than before.
    value: int


class FeatureState:
    """What a feature does for one request, from its arrival to its end. Preemption does not change it. masks: whether
    it restricts which tokens may be sampled; then mask(), accept(), complete and failure are used."""

    masks: bool = False

    def ready(self) -> bool:
        """Whether the request may start. Called when it arrives and then before each step until the answer is True. In
        the meantime the request waits, and no other request waits for it. Raises RequestError if it can never start.
        Default: True."""
        return True

    def columns(self) -> Mapping[str, float]:
        """Values for the feature's own columns. Called each time the request gets a row, after it took its resources.
        Default: none."""
        return {}

    def finishing(self, row: int, num_tokens: int) -> KVTransferParams | None:
        """Called once when the request is about to end as it should, with its answer whole, and before ended(). The row
        holds keys and values of its first num_tokens tokens. Returns what the client is told beside the answer.
        Default: None."""
        return None

    def ended(self) -> None:
        """Called once when the request ends, however it does. Default: nothing."""

    def mask(self, bits: Array) -> None:
        """Clears the bits of the tokens that must not be sampled next. bits [ceil(vocabulary / 32)] int32, the lowest
        first. Called once for each token, after all tokens before it have been accepted, unless the feature's half
        answers for many requests at once (EngineFeature.mask). Default: clears none."""

    def accept(self, token: int) -> bool:
        """Takes the token that was sampled, or a draft, which rollback() takes back. False if it is not allowed here:
        the request then ends with an error and the token is dropped. An end of text is allowed only where the answer is
        complete. Default: True."""
        return True

    def num_allowed(self, drafts: Array) -> int:
        """How many of these tokens [n] int32, guesses of the next ones, could be accepted one after the other. Changes
        nothing. A state that cannot take tokens back returns 0. Default: 0."""
        return 0

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last num_tokens tokens that were accepted, and a failure after them. Called after masks for
        drafts were made, and only if num_allowed() allowed some. Default: nothing."""

    @property
    def failure(self) -> Failure | None:
        """Why no token may follow although the answer is not complete: the request ends with this error. Asked after
        mask(), and after accept() returned False. Default: None."""
        return None

    @property
    def complete(self) -> bool:
        """Whether no token may follow: the request ends with finish_reason "stop", and its last token is part of the
        answer. Default: False."""
        return False


class EngineFeature:
    """The half of a feature in the engine's process. It must not import torch. Its methods and those of its
    FeatureStates are called by the thread that runs the steps, so none of them may take long; work that does belongs on
    a thread of the feature's own."""

    def fields(self) -> frozenset[str]:
        """Names of the request fields that it serves: fields of SamplingParams, or names in extra_args (vllm_xargs). A
        request that uses a field that no feature serves is refused. Default: none."""
        return frozenset()

    def started(self, loaded: LoadedModel) -> None:
        """Called once, when the model is loaded and before any request. Default: does nothing."""

    def check(self, args: Mapping[str, str]) -> None:
        """Called with the feature_args of each request that has some, before begin(). Raises RequestError if the
        feature cannot use its own value. Default: does nothing."""

    def resources(self) -> Sequence[Resource]:
        """Limited resources that requests take. Called once. Default: none."""
        return ()

    def poll(self) -> None:
        """Called before each step, and about once a second while there is nothing to run. Default: does nothing."""

    def make_room(self) -> bool:
        """Called when nothing runs and the next request has too few blocks: the feature gives up some that it holds for
        no request that runs, at once or soon. False if it holds none. Default: False."""
        return False

    def counters(self) -> Sequence[FeatureCounter]:
        """What it counts. Asked with each report of the engine. Default: nothing."""
        return ()

    def mask(self, states: Sequence[FeatureState], bits: Array) -> None:
        """FeatureState.mask() for many requests at once: bits [n, ceil(vocabulary / 32)] int32 has a row for each of
        the n states, which are this feature's own. Default: asks one after the other."""
        for state, own in zip(states, bits, strict=True):
            state.mask(own)

    def scheduled(self, step: SchedulerOutput, row_of: Callable[[int], int]) -> None:
        """Called with each step once it is scheduled, to add what the worker halves need for it. row_of: a request's
        key -> its row. Default: adds nothing."""

    def retired(self, seconds: float, num_tokens: int) -> None:
        """Called when the oldest scheduled step has been computed. seconds: that it took by itself, without those
        before it. num_tokens: that it computed. Default: does nothing."""

    def begin(self, request: Request) -> FeatureState | None:
        """Called when a request arrives. None: the request does not use the feature in this process. Raises
        RequestError, which the client receives. Default: None."""
        return None


# ---- in each worker


@dataclass(frozen=True)
class Column:
    """A number that a feature keeps for each row. default: if a request does not set it. each: whether a launch has it
    for each row or for each token. internal: only the feature's engine half sets it; requests must not."""

    name: str
    dtype: str
    default: float = 0.0
    each: Literal["row", "token"] = "row"
    internal: bool = False


class WorkerFeature:
    """The half of a feature in each worker. Enabled features are in one list, in the order of `--features`. A runner of
    a platform's own says which methods it calls."""

    def columns(self) -> Sequence[Column]:
        """Numbers that the feature keeps for each row; a launch has them in Launch.columns. The feature chooses their
        names, and requests set them in extra_args. Default: none."""
        return ()

    def wrappers(self) -> Mapping[str, Wrapper]:
        """The ops that it wraps, by name. Called once, before the model is built. Default: none."""
        return {}

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        """Called once, after the model was built and before its weights are loaded. products: its linear layers. arena:
        counts what the feature allocates, until wrap() returns. Raises ModelError, PlatformError. Default: does
        nothing."""

    def tensors(self) -> Sequence[MutableMapping[str, Tensor]]:
        """The tensors that its part of the forward pass reads, each in the mapping where it looks it up whenever it is
        called. Asked once, after wrap(). A runner that traces the model exchanges them there, as it does with weights,
        for copies of its own. Default: none."""
        return ()

    def wrap(self, model: Model) -> Model:
        """The model with the feature added. Called once, at load. Default: the model itself."""
        return model

    def keys(self) -> frozenset[str]:
        """The bits that it may add to launch keys. Default: none."""
        return frozenset()

    def prompt_keys(self) -> frozenset[str]:
        """Bits beside keys() that launches with prompts alone may have, and that no launch is captured with. A runner
        that compiles launches ahead compiles those of prompts with them too. Default: none."""
        return frozenset()

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        """Those of keys() that a step needs. columns: the values of its rows in the feature's columns, by name.
        Warm-up captures launches with the bits of default values, and with all. Default: all."""
        return self.keys()

    def open(self, opened: Sequence[RowOpened]) -> bool:
        """Called at the start of a step that opens rows, with these. Returns whether it changed any of its tensors() in
        place. Default: changes none."""
        return False

    def begin(self, step: SchedulerOutput) -> bool:
        """Called at the start of each step, after open(). Returns whether it changed any of its tensors() in place.
        Default: changes none."""
        return False

    def token_columns(self, launch: LaunchRows) -> Mapping[str, Array]:
        """Values of some of its columns that a launch has for each token, by name, [T] of the column's dtype; a token
        of a column that is left out has its row's value. Called before the forward pass of each launch. Default:
        none."""
        return {}

    def positions(self, launch: LaunchRows) -> Array | None:
        """The positions [T] int32 that rotary embeddings turn a launch's tokens by, where these are not their places in
        the cache. Called before the forward pass of each launch. Default: None, they are."""
        return None

    def before(self, launch: Launch) -> None:
        """Called before the forward pass of each launch. It may write into the launch's tensors, but not replace them.
        It must not write into rows, query_start_loc, query_lens, logits_indices and block_tables, because the next
        launch may reuse them. Default: does nothing."""

    def logits(self, launch: Launch, logits: Tensor) -> Tensor:
        """logits [S, vocabulary] of a launch -> the logits to sample from, of the same shape and dtype. Here and in
        after(), launch.rows and launch.columns have one entry for each of the S; a row with drafts has several. Masks
        may change the result in place. Default: the logits themselves."""
        return logits

    def after(self, launch: Launch, sampled: Tensor) -> None:
        """Called after sampling. sampled [S] int32: the sampled tokens, on the device. Default: does nothing."""


def possible_bits(features: Sequence[WorkerFeature]) -> list[frozenset[str]]:
    """The bits that launches may have: those of rows that ask for nothing, then those with more."""
    variants = [frozenset[str]()]
    for feature in features:
        idle = feature.bits({column.name: np.array([column.default], column.dtype) for column in feature.columns()})
        variants = [known | bits for bits in dict.fromkeys((idle, feature.keys())) for known in variants]
    return variants


def prompt_bits(features: Sequence[WorkerFeature]) -> frozenset[str]:
    """The bits of launches with prompts alone."""
    return frozenset[str]().union(*(feature.prompt_keys() for feature in features))


def asked_bits(features: Sequence[WorkerFeature], columns: Mapping[str, Array], rows: Array) -> frozenset[str]:
    """The bits that features add to a step. columns: InputBatch.columns. rows: of the step."""
    asked = (
        feature.bits({column.name: columns[column.name][rows] for column in feature.columns()}) for feature in features
    )
    return frozenset[str]().union(*asked)
