"""Tiny models with random weights: their checkpoints, an engine in this process whose steps can be observed, and
whether two runs gave the same answers."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

from safetensors.torch import save_file

from tessera.arrays import int32
from tessera.config import EngineConfig, build_config
from tessera.engine.child import executor_path
from tessera.engine.engine import Pipeline, depth, make_policy, make_scheduler, silent
from tessera.engine.startup import StartedEngine, start_up
from tessera.executor.in_process import InProcessExecutor
from tessera.layers.build import TENSOR_GROUP
from tessera.loader.random_weights import Dummy
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Alone
from tessera.platform.device import Future
from tessera.platform.feature import EngineFeature
from tessera.platform.quantization import Part
from tessera.platform.runner import ModelRunner
from tessera.plugins import load_registry
from tessera.plugins.features import engine_features
from tessera.reference import reference_backends
from tessera.request import NO_ARGS, Request, make_cache_key
from tessera.runner.services import Services
from tessera.sampling_params import SamplingParams
from tessera.scheduler.features import EngineFeatures
from tessera.scheduler.outputs import EngineCoreOutputs
from tessera.step import SchedulerOutput, StepOutput, TokenMasks
from tessera.testing.compare import TOLERANCES
from tessera.testing.conformance.case import ConformanceError
from tessera.testing.conformance.target import KIT_PLATFORMS, Target
from tessera.testing.reference import ReferencePlatform, host_device

# ---- checkpoints


VOCAB = 101
_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": VOCAB,
        "hidden_size": 72,
        "num_hidden_layers": 2,
        "head_dim": 12,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
    }
)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"architectures": ["LlamaForCausalLM"]},
        "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 19},
        "mixtral": {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    }
)


def save_tiny(
    folder: Path, family: str, dtype: str, positions: int = 256, ranks: int = 2, **settings: Any
) -> None:  # fmt: skip
    """A model of FAMILIES. positions: tokens that prompt and answer may have. ranks: its sizes are multiples of it.
    settings: more of its configuration."""
    sizes = {"intermediate_size": 44 * ranks, "num_attention_heads": 3 * ranks, "num_key_value_heads": ranks}
    named = {"model_type": family, "max_position_embeddings": positions}
    save_checkpoint(folder, {**_SIZES, **sizes, **FAMILIES[family], **named, **settings}, dtype)


def save_checkpoint(folder: Path, settings: Mapping[str, Any], dtype: str) -> None:
    """Writes config.json with these settings, and weights: the same each time, unsharded, with checkpoint names."""
    folder.joinpath("config.json").write_text(json.dumps(dict(settings)), encoding="utf-8")
    source, kind = Dummy(seed=0), torch_dtype(dtype)
    whole = {part.name: Part(part.name, part.whole, fill=part.fill) for part in _parts(folder, dtype, source)}
    tensors = {name: source.read(part).to(kind).contiguous() for name, part in whole.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _parts(folder: Path, dtype: str, source: Dummy) -> Iterator[Part]:
    """All weights that a model with the folder's configuration reads."""
    config = build_config(
        model=str(folder),
        platform=KIT_PLATFORMS["reference"],
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=dtype,
    )
    services = Services(config, [host_device()], {TENSOR_GROUP: Alone()}, ReferencePlatform(), source=source)
    services.build_model(services.reference(), reference_backends())
    assert services.build is not None, "build_model leaves it behind"
    for parameter in services.build.parameters:
        for name in parameter.parts:
            for join in parameter.joins(name):
                yield from join


# ---- an engine


class Observer(Protocol):
    """Observes what a step does on the device."""

    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> AbstractContextManager[Any]:
        """A context around one execute(step), or around one sample() if step is None."""


class ObservedExecutor(InProcessExecutor):
    """observers: entered around every execute() and sample()."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.observers: list[Observer] = []

    def execute(self, step: SchedulerOutput) -> Any:
        with ExitStack() as stack:
            self._enter(stack, step)
            return super().execute(step)

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        with ExitStack() as stack:
            self._enter(stack, None)
            return super().sample(pending, masks)

    def _enter(self, stack: ExitStack, step: SchedulerOutput | None) -> None:
        for observer in self.observers:
            stack.enter_context(observer.around(self.worker.runner, step))


class TinyRun:
    """`with TinyRun(target, "float32") as run: run.ask(prompts, 12)`."""

    executor: ObservedExecutor

    def __init__(
        self,
        target: Target,
        dtype: str,
        *,
        family: str = "llama",  # of the model
        positions: int = 2048,  # of the model
        ranks: int = 2,  # of the model
        engine_features: Sequence[EngineFeature] = (),  # halves
        plugins: Sequence[str] = (),  # modules that add features
        # Processes; one is this process, whose steps are observed. Flags are those of build_config.
        workers: int = 1,
        sizes: Mapping[str, Any] = MappingProxyType({}),  # more of its configuration
        # By request, log probabilities of the answer's tokens (none in float32, unless asked for), tokens of the prompt
        # that were found in the cache.
        logprobs: int | None = None,
        **flags: Any,
    ) -> None:
        flags = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 1 << 21, **flags}
        flags.setdefault("check_kv_cache", not target.brings_a_runner)
        self._engine_features = engine_features
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-conformance-")  # of the model and of the engine
        self.folder = Path(self._folder.name)
        try:
            save_tiny(self.folder, family, "float32", positions, ranks, **sizes)
            config = build_config(
                model=self._folder.name, platform=target.path, skip_tokenizer_init=True, dtype=dtype,
                tensor_parallel_size=workers, **flags,
            )  # fmt: skip
            self._start(
                dataclasses.replace(config, embedded=workers == 1, plugins=tuple(plugins), folder=self._folder.name)
            )
        except BaseException:
            self._folder.cleanup()
            raise
        self._logprobs = logprobs if logprobs is not None or dtype == "float32" else 0
        self.answers: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        # By request, log probabilities of the answer's tokens (none in float32, unless asked for), tokens of the prompt
        # that were found in the cache.
        self.cached: dict[int, int] = {}

    def _start(self, config: EngineConfig) -> None:
        registry = load_registry(config.plugins)
        policy, halves = make_policy(config, registry), engine_features(config, registry)
        self.started = self.start_up(config)
        executor = self.started.executor
        if isinstance(executor, ObservedExecutor):
            self.executor = executor
        steps_in_flight = depth(self.started.config, executor.platform.capabilities)
        features = EngineFeatures([*halves, *self._engine_features], config.model.vocab_size)
        features.started(self.started.loaded)
        self.scheduler = make_scheduler(self.started, policy, steps_in_flight, features)
        self._pipeline = Pipeline(self.scheduler, executor, steps_in_flight)

    def start_up(self, config: EngineConfig) -> StartedEngine:
        """Its executor is an ObservedExecutor if there is one worker."""
        workers = config.parallel.world_size
        path = f"{__name__}:{ObservedExecutor.__name__}" if workers == 1 else executor_path(workers)
        return start_up(config, path, silent)

    @property
    def runner(self) -> Any:
        return self.executor.worker.runner

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int, **params: Any) -> list[list[int]]:
        """The answers to all prompts, run together, each of max_tokens tokens. Prompt i has seed i."""
        first = len(self.answers)
        for seed, prompt in enumerate(prompts):
            self.add(prompt, max_tokens, seed, **params)
        self.finish()
        return self.answers[first:]

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        seed: int,
        leader: int = -1,
        salt: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
        **params: Any,
    ) -> int:
        """The request's key. leader: key of the sibling whose prompt it shares. salt: requests with another one share
        no blocks with it."""
        params = {"temperature": 0.0, "ignore_eos": True, **params}
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=self._logprobs, **params)
        key = len(self.answers)
        self.answers.append([])
        self.logprobs.append([])
        given = (key, str(key), int32(prompt), sampling, max_tokens, seed)
        cache_key = make_cache_key(salt, feature_args)
        self.scheduler.add(Request(*given, cache_key=cache_key, leader=leader, feature_args=dict(feature_args)))
        return key

    def finish(self) -> None:
        """Steps until nothing is left to do."""
        while self.scheduler.has_work:
            self._step()
        self.scheduler.take_finished()
        self.scheduler.check_integrity()

    def _step(self) -> None:
        outputs = self._pipeline.step()
        if outputs is not None:
            self._take(outputs)

    def _take(self, outputs: EngineCoreOutputs) -> None:
        tokens = iter(outputs.tokens.tolist())
        for key, count in zip(outputs.keys.tolist(), outputs.counts.tolist(), strict=True):
            self.answers[key] += [next(tokens) for _ in range(count)]
        for row in outputs.logprobs:
            self.logprobs[row.key] += row.logprobs.logprobs[:, 0].tolist()
        for started in outputs.started:
            self.cached.setdefault(started.key, started.num_cached_tokens)

    def close(self) -> None:
        self.started.executor.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths; the same ones each time."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    return [[chance.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


# ---- answers


_SLACK = 10  # times the tolerance of one op: the errors of layers add up


class Answered(Protocol):
    @property
    def answers(self) -> Sequence[Sequence[int]]: ...
    @property
    def logprobs(self) -> Sequence[Sequence[float]]: ...


@dataclass(frozen=True)
class TinyAnswers:
    """logprobs: of each answer's tokens."""

    answers: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]

    @classmethod
    def from_run(cls, run: Answered, first: int = 0, last: int | None = None) -> TinyAnswers:
        """The answers so far of some requests of a run."""
        part = slice(first, last)
        return cls([list(answer) for answer in run.answers[part]], [list(row) for row in run.logprobs[part]])


def compare_answers(what: str, answers: TinyAnswers, expected: TinyAnswers, dtype: str) -> None:
    """Compares every token in float32; in 16 bits, up to a position where both runs' tokens were about equally likely.
    Up to there, compares log probabilities too, where both runs have them. Raises ConformanceError."""
    slack = _SLACK * TOLERANCES[dtype]
    for number, (mine, theirs) in enumerate(zip(answers.answers, expected.answers, strict=True)):
        said = f"{what}, request {number} in {dtype}"
        if len(mine) != len(theirs):
            raise ConformanceError(f"{said}: the answer has {len(mine)} tokens, not {len(theirs)}")
        place = next((i for i, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other), None)
        _compare_logprobs(said, answers.logprobs[number][:place], expected.logprobs[number][:place], slack)
        if place is None:
            continue
        if dtype == "float32" or not math.isclose(
            answers.logprobs[number][place], expected.logprobs[number][place], rel_tol=slack, abs_tol=slack
        ):
            raise ConformanceError(f"{said}: token {place + 1} of the answer is {mine[place]}, not {theirs[place]}")


def _compare_logprobs(what: str, logprobs: Sequence[float], expected: Sequence[float], slack: float) -> None:
    for place, (mine, theirs) in enumerate(zip(logprobs, expected, strict=False)):
        if not math.isclose(mine, theirs, rel_tol=slack, abs_tol=slack):
            raise ConformanceError(
                f"{what}: token {place + 1} of the answer has log probability {mine:.6g}, not {theirs:.6g}"
            )
