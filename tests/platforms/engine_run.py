"""An engine of a tiny model, what it was asked, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tessera.arrays import Array, int32
from tessera.config import build_config
from tessera.config.pooler import PoolingTask
from tessera.engine.engine import Engine
from tessera.lora import lora_args
from tessera.media.placed import PlacedMedia
from tessera.platform import Platform
from tessera.plugins import load_path
from tessera.pooling_params import RequestPooling
from tessera.request import Request, make_cache_key
from tessera.sampling_params import SamplingParams
from tessera.scheduler.outputs import EngineCoreOutputs, FinishedRequest
from tessera.step import PromptLogprobs, RowLogprobs, SchedulerOutput
from tests.platforms.generated import numpy_platform
from tests.platforms.watched import WATCHED, WatchedExecutor

PLATFORMS: Mapping[str, str] = {
    "cpu": "tessera_cpu.platform:CpuPlatform",
    "reference": "tessera.testing:ReferencePlatform",
    "strict": "tessera.testing:StrictPlatform",
    "strict-separate": "tessera.testing:SeparateStrictPlatform",
    "fakechip": "tessera_fakechip.platform:FakechipPlatform",
    "fakechip-static": "tessera_fakechip.stages:Static",
    "fakechip-bronze": "tessera_fakechip.stages:Bronze",
}


class EngineRun:
    """answers, logprobs, scored, ended, finished, cached: by key. Flags are those of build_config; the KV cache is
    checked unless they say otherwise or the platform has a runner of its own."""

    def __init__(
        self,
        model: Path,
        platform: str,
        *,
        depth: int = 1,
        features: Sequence[str] = (),
        tokenizer: str = "",
        plugins: Sequence[str] = (),
        eos_token_ids: Sequence[int] | None = None,
        executor: str | None = WATCHED,
        levels: Mapping[str, int] | None = None,
        **flags: Any,
    ) -> None:
        path = numpy_platform() if platform == "numpy" else PLATFORMS.get(platform, platform)
        cores_runner = getattr(load_path(path), "runner", None) is Platform.runner
        flags = {"max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 21, "dtype": "float32", **flags}
        flags.setdefault("check_kv_cache", cores_runner)
        config = build_config(
            model=str(model),
            platform=path,
            skip_tokenizer_init=True,
            steps_in_flight=depth,
            threads=1,
            **flags,
        )
        if eos_token_ids is not None:
            config = dataclasses.replace(
                config, model=dataclasses.replace(config.model, eos_token_ids=tuple(eos_token_ids))
            )
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, tokenizer=tokenizer),
            features=tuple(features),
            plugins=tuple(plugins),
            embedded=executor is not None,
            platform_levels=dict(levels or {}),
        )
        self.engine = Engine(config, executor=executor)
        self.answers: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[RowLogprobs]] = {}
        self.scored: dict[int, list[PromptLogprobs]] = {}
        self.ended: dict[int, str] = {}
        self.stop_tokens: dict[int, int | None] = {}
        self.finished: dict[int, FinishedRequest] = {}
        self.cached: dict[int, int] = {}
        self.pooled: dict[int, Array] = {}

    @property
    def executor(self) -> WatchedExecutor:
        executor: Any = self.engine._executor
        return executor

    @property
    def steps(self) -> list[SchedulerOutput]:
        return self.executor.steps

    @property
    def live(self) -> list[int]:
        return [key for key in self.answers if key not in self.ended]

    @property
    def num_drawn_in_vain(self) -> int:
        """Tokens drawn for answers that had ended by then."""
        return sum(len(step.samples) for step in self.steps) - sum(map(len, self.answers.values()))

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 12,
        *,
        seed: int = 0,
        leader: int = -1,
        columns: Mapping[str, float] | None = None,
        adapter: str = "",
        media: Sequence[PlacedMedia] = (),
        **params: Any,
    ) -> int:
        key = len(self.answers)
        feature_args = lora_args(adapter) if adapter else {}
        self.answers[key], self.logprobs[key], self.scored[key] = [], [], []
        sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **params})
        self.engine.add(
            Request(
                key,
                str(key),
                int32(prompt),
                sampling,
                max_tokens,
                seed,
                leader=leader,
                columns=dict(columns or {}),
                cache_key=make_cache_key("", feature_args),
                feature_args=feature_args,
                media=tuple(media),
            )
        )
        return key

    def pool(
        self,
        prompt: Sequence[int],
        task: PoolingTask = "embed",
        *,
        start: int = 0,
        columns: Mapping[str, float] | None = None,
        media: Sequence[PlacedMedia] = (),
    ) -> int:
        """start: the position of the first token that is pooled."""
        key, pooler = len(self.answers), self.engine.config.model.pooler
        assert pooler is not None
        self.answers[key], self.logprobs[key], self.scored[key] = [], [], []
        pooling = RequestPooling.from_config(pooler, task, start)
        request = Request(
            key, str(key), int32(prompt), SamplingParams(), 0, 0, columns=dict(columns or {}), pooling=pooling,
            media=tuple(media),
        )  # fmt: skip
        self.engine.add(request)
        return key

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int = 12, **params: Any) -> list[list[int]]:
        """The answers to all at once; request i has seed i."""
        keys = [self.add(prompt, max_tokens, **{"seed": seed, **params}) for seed, prompt in enumerate(prompts)]
        self.finish()
        return [self.answers[key] for key in keys]

    def step(self) -> None:
        outputs = self.engine.step()
        if outputs is not None:
            self._take(outputs)

    def finish(self) -> None:
        """Steps until nothing is left to do. Nothing may be lost by then, nor read behind the device's back."""
        while self.engine.has_work:
            self.step()
        self._end(self.engine._scheduler.take_finished())  # aborted after the last step
        self.engine.check_integrity()
        assert not self.live
        if isinstance(self.executor, WatchedExecutor):
            assert not self.executor.host_reads, self.executor.host_reads

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, outputs: EngineCoreOutputs) -> None:
        tokens = iter(outputs.tokens.tolist())
        for key, count in zip(outputs.keys.tolist(), outputs.counts.tolist(), strict=True):
            self.answers[key] += [next(tokens) for _ in range(count)]
        for row in outputs.logprobs:
            self.logprobs[row.key].append(row.logprobs)
        for of in outputs.prompt_logprobs:
            self.scored[of.key].append(of.prompt_logprobs)
        for started in outputs.started:
            self.cached.setdefault(started.key, started.num_cached_tokens)
        for pooled in outputs.pooled:
            assert pooled.key not in self.pooled
            self.pooled[pooled.key] = pooled.values
        self._end(outputs.finished)

    def _end(self, ended: Sequence[FinishedRequest]) -> None:
        for finished in ended:
            self.ended[finished.key] = finished.reason
            self.stop_tokens[finished.key] = finished.stop_token
            self.finished[finished.key] = finished
