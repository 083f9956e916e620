"""An engine that answers by a script: what it says, how fast, and when it fails. It keeps AsyncEngine's promises."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tessera.arrays import Array
from tessera.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tessera.config.pooler import PoolerConfig
from tessera.config.speech import SpeechConfig
from tessera.engine.input_processor import NO_COLUMNS, InputProcessor, PooledPrompt, Prompt
from tessera.engine.messages import EngineStats
from tessera.engine.metrics import Histogram, Metric
from tessera.engine.pooling import activated
from tessera.errors import EngineDeadError, RequestError
from tessera.media.placed import PlacedMedia
from tessera.pooling_params import PoolingParams
from tessera.request import (
    NO_ARGS,
    CompletionOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    RequestOutput,
)
from tessera.sampling_params import RequestOutputKind, SamplingParams, changed
from tessera.text import Tokenizer
from tests.text_in_process import TextInProcess

MODEL = "fake-model"
MAX_MODEL_LEN = 512
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is not none else '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.x }}]{% endfor %}"
    "</{{ m.role }}>{% endfor %}"
    "{% if mood is defined %}({{ mood }}){% endif %}{% if tools %}TOOLS{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(response_template: str = "") -> Tokenizer:
    """A token a byte, in the byte-level alphabet, and a BOS that only add_special_tokens puts in front."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B:1", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return Tokenizer(tokenizer, {"bos_token": "<bos>"}, {"default": TEMPLATE}, response_template)


def histogram() -> Histogram:
    histogram = Histogram((0.1, 1.0))
    for value, times in ((0.05, 4), (0.5, 2), (2.0, 1)):
        histogram.observe(value, times)
    return histogram


@dataclass
class FakeMetrics:
    """stats: what the engine last reported."""

    stats: EngineStats = field(default_factory=EngineStats)

    def read(self) -> list[Metric]:
        return [
            Metric("num_requests_running", "gauge", "Running.", 3),
            Metric("prompt_tokens", "counter", "Prompt tokens.", 12),
            Metric("request_success", "counter", "Ended.", 5, ("finished_reason", "stop")),
            Metric("request_success", "counter", "Ended.", 2, ("finished_reason", "length")),
            Metric("time_to_first_token_seconds", "histogram", "First token.", histogram()),
        ]


@dataclass
class FakeHealth:
    alive: bool = True
    stalled: bool = False
    seconds_since_heartbeat: float = 0.0
    error: str | None = None
    restarting: bool = False
    asleep: bool = False


@dataclass
class FakeInfo:
    max_model_len: int = MAX_MODEL_LEN
    max_num_seqs: int = SchedulerConfig.max_num_seqs
    dtype: str = "float32"
    block_size: int = 16
    num_blocks: int = 99
    num_cache_tokens: int = 1584
    cache: CacheConfig = field(default_factory=CacheConfig)


@dataclass
class Call:
    prompt: list[int]
    params: SamplingParams
    request_id: str
    priority: int
    cache_salt: str
    tenant: str
    feature_args: Mapping[str, str]
    media: tuple[PlacedMedia, ...] = ()
    data_parallel_rank: int | None = None


@dataclass
class PooledCall:
    prompt: PooledPrompt
    params: PoolingParams
    request_id: str
    priority: int
    cache_salt: str
    tenant: str
    feature_args: Mapping[str, str]


def numbers(ids: Sequence[int], params: PoolingParams, pooler: PoolerConfig) -> Array:
    """What the model's head makes of a prompt: each token adds a row of a table, and the sum is the text's. Of the task
    align, each token attends to one position of two."""
    if params.task == "align":
        return np.eye(2, dtype=np.float32)[np.arange(len(ids)) * 2 // len(ids)]
    vectors = params.task in ("embed", "token_embed")
    width = pooler.dimensions if vectors else max(len(pooler.labels), 1)
    table = np.random.default_rng(width).standard_normal((257, width)).astype(np.float32)
    rows: Array = table[np.asarray(ids)]
    return rows if params.task.startswith("token_") else rows.sum(axis=0)


@dataclass
class Script:
    """pieces: the text of each token, for all answers. delay: seconds before each token. error: raised in place of the
    token of number error_at. hang_at: the number of a token that never comes. scores: probabilities of tokens that
    requests name, by their text; those of others are 0. first_id: that of the first token; the others' follow it."""

    pieces: Sequence[str] = ("Hel", "lo", ", ", "wörld", "!")
    delay: float = 0.0
    error: Exception | None = None
    error_at: int = 0
    num_cached_tokens: int = 0
    stop_reason: int | str | None = None
    finish_reason: str = "stop"
    scores: Mapping[str, float] = field(default_factory=dict)
    hang_at: int | None = None
    first_id: int = 0


@dataclass
class FakeEngine:
    tokenizer: Tokenizer | None = field(default_factory=byte_tokenizer)
    script: Script = field(default_factory=Script)
    health: FakeHealth = field(default_factory=FakeHealth)
    info: FakeInfo = field(default_factory=FakeInfo)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    calls: list[Call] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    steps: int = 0
    tokenized: int = 0
    template: str | None = None
    # How the model pools, and whether it generates too.
    pooler: PoolerConfig | None = None
    generates: bool = True
    checkpoint: dict[str, Any] = field(default_factory=dict)
    pooled: list[PooledCall] = field(default_factory=list)
    # What processes images and sounds, which of them prompts may have, and how many of each.
    media: Any = None
    modalities: tuple[str, ...] = ("image",)
    most_media: int = 2
    # How it writes down speech.
    speech: SpeechConfig | None = None
    # Of all requests.
    times: RequestMetrics = field(default_factory=RequestMetrics)
    text: TextInProcess | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            self.text = TextInProcess(self.tokenizer, self.template)
        self.config = EngineConfig(
            ModelConfig("somewhere/model", MODEL, self.checkpoint, 257, MAX_MODEL_LEN), "fake:Platform"
        )
        shown: dict[str, Any] = {}
        if self.media is not None:
            limits = dict.fromkeys(self.modalities, self.most_media)
            shown = {"modalities": self.modalities, "limit_mm_per_prompt": limits, "speech": self.speech}
        model = replace(self.config.model, pooler=self.pooler, generates=self.generates, **shown)
        self.config = replace(self.config, model=model)
        self._dead = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def stats(self) -> EngineStats:
        return self.metrics.stats

    def all_metrics(self) -> list[tuple[FakeMetrics, FakeInfo]]:
        return [(self.metrics, self.info)]

    @property
    def num_unfinished(self) -> int:
        return len(self.running)

    def check_alive(self) -> None:
        if not self.health.alive:
            raise EngineDeadError("The engine process ended: exit code -9 in /some/where.py")

    def _admit(self) -> None:
        self.check_alive()

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def shutdown(self) -> None:
        self.health.alive = False
        self._closed.set()

    def die(self) -> None:
        self.health.alive = False
        self.health.error = "exit code -9 in /some/where.py"
        self._closed.set()
        self._dead.set()

    async def generate(
        self,
        prompt: Sequence[int] | Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
        add_special_tokens: bool = True,
        client: str = "",
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        assert request_id not in self.running
        prepared = prompt if isinstance(prompt, Prompt) else await self.prepare_prompt(prompt, params)
        ids = prepared.ids.tolist()
        owner = (priority, cache_salt, tenant, feature_args)
        self.calls.append(Call(ids, params, request_id, *owner, prepared.media, data_parallel_rank))
        self._admit()
        self.running.add(request_id)
        finished = False
        try:
            answers = [CompletionOutput(index, "", []) for index in range(params.n)]
            for number in itertools.count():
                await self._wait(number)
                self.steps += 1
                finished = self._extend(answers, number, params)
                if params.output_kind is RequestOutputKind.DELTA or finished:
                    yield self._output(request_id, ids, answers, params)
                if finished:
                    return
                if params.output_kind is RequestOutputKind.DELTA:
                    answers = [CompletionOutput(index, "", []) for index in range(params.n)]
        finally:
            self.running.discard(request_id)
            if not finished:
                self.aborted.append(request_id)

    async def prepare_params(self, params: SamplingParams, client: str = "") -> SamplingParams:
        """A word's ids are its length."""
        if params.bad_words:
            self.tokenized += 1
            params = changed(params, bad_words_ids=[[len(word)] for word in params.bad_words])
        return params if self.text is None else await self.text.check_grammar(params, client)

    async def prepare_prompt(
        self, ids: Sequence[int], params: SamplingParams, text: str | None = None, media: Sequence[PlacedMedia] = ()
    ) -> Prompt:
        self._check_limits(ids, params)
        room = self.info.max_model_len - len(ids)
        return Prompt(text, np.asarray(ids, np.int32), params.max_tokens or room, params, None, tuple(media))

    async def prepare_pooled(
        self,
        prompt: Sequence[int],
        params: PoolingParams,
        *,
        pooled_from: int = 0,
        columns: Mapping[str, float] = NO_COLUMNS,
        media: Sequence[PlacedMedia] = (),
    ) -> PooledPrompt:
        inputs = InputProcessor(self.config, self.tokenizer, self.info.max_model_len)
        return inputs.prepare_pooled(prompt, params, text=None, pooled_from=pooled_from, columns=columns, media=media)

    async def encode(
        self,
        prompt: PooledPrompt,
        params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
        client: str = "",
        data_parallel_rank: int | None = None,
    ) -> PoolingRequestOutput:
        assert request_id not in self.running
        owner = (priority, cache_salt, tenant, feature_args)
        self.pooled.append(PooledCall(prompt, params, request_id, *owner))
        self._admit()
        self.running.add(request_id)
        finished = False
        try:
            await self._wait(len(self.pooled) - 1)
            self.steps += 1
            finished = True
        finally:
            self.running.discard(request_id)
            if not finished:
                self.aborted.append(request_id)
        ids = prompt.ids.tolist()
        assert self.pooler is not None
        data = activated(numbers(ids, params, self.pooler), params, self.pooler)
        cached = self.script.num_cached_tokens
        return PoolingRequestOutput(request_id, PoolingOutput(data), ids, num_cached_tokens=cached)

    def _check_limits(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if any(not 0 <= token < self.config.model.vocab_size for token in prompt):
            raise RequestError("A token id is out of the vocabulary.", param="prompt")
        wanted = len(prompt) + (params.max_tokens or 1)
        if wanted > self.info.max_model_len:
            most = self.info.max_model_len
            text = f"This model's maximum context length is {most} tokens. However, you requested {wanted} tokens."
            raise RequestError(text, param="prompt", code="context_length_exceeded")

    async def _wait(self, number: int) -> None:
        script = self.script
        if script.error is not None and number == script.error_at:
            raise script.error
        seconds = 3600 if script.hang_at == number else script.delay
        if seconds:
            try:
                await asyncio.wait_for(self._closed.wait(), seconds)
            except TimeoutError:
                return
        else:
            await asyncio.sleep(0)
        if self._closed.is_set():
            raise EngineDeadError("The engine process ended: exit code -9 in /some/where.py")

    def _extend(self, answers: list[CompletionOutput], number: int, params: SamplingParams) -> bool:
        script = self.script
        ended = number == len(script.pieces) - 1
        cut = params.max_tokens is not None and number + 1 >= params.max_tokens
        for answer in answers:
            answer.text += script.pieces[number]
            answer.token_ids.append(script.first_id + number)
            if params.logprobs is not None:
                found = position(
                    script.first_id + number, script.pieces[number], 0 if params.logprob_token_ids else params.logprobs
                )
                found |= {token: self._named(token) for token in params.logprob_token_ids or ()}
                answer.logprobs = [*(answer.logprobs or []), found]
            if ended or cut:
                answer.finish_reason = script.finish_reason if ended else "length"
                answer.stop_reason = script.stop_reason if ended else None
        return ended or cut

    def _named(self, token: int) -> Logprob:
        assert self.tokenizer is not None
        text = self.tokenizer.token_text(token).text
        share = self.script.scores.get(text, 0.0)
        return Logprob(math.log(share) if share else -math.inf, 1, text)

    def _output(
        self, request_id: str, prompt: Sequence[int], answers: list[CompletionOutput], params: SamplingParams
    ) -> RequestOutput:
        finished = all(answer.finished for answer in answers)
        cached = self.script.num_cached_tokens
        scored: list[Mapping[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            assert self.tokenizer is not None
            texts = [self.tokenizer.token_text(token).text for token in prompt]
            count = params.prompt_logprobs
            scored = [None] + [position(t, text, count) for t, text in zip(prompt[1:], texts[1:], strict=True)]
        return RequestOutput(
            request_id, None, list(prompt), answers, finished, cached, self.times, prompt_logprobs=scored
        )


def position(token: int, text: str, count: int) -> dict[int, Logprob]:
    """The chosen token is the second most likely where there is more than one; the last alternative is impossible."""
    entries = {token: Logprob(-1.5, 2, text)}
    for order in range(1, count + 1):
        if order == 1:
            entries[100] = Logprob(-0.5, 1, "a")
        elif order > 2:
            entries[100 + order] = Logprob(float("-inf") if order == count else -2.0 - order, order, f"b{order}")
    return entries
