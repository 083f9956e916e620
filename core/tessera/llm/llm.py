"""LLM: the offline front door. An engine in this process, a list of prompts in, their answers out in order."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from tessera.config import build_config
from tessera.config.engine import ENGINE_FLAGS
from tessera.config.flags import check_names
from tessera.engine.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from tessera.engine.engine import Engine
from tessera.engine.input_processor import Prompt, bad_word_texts, no_bad_words, no_tokenizer, with_bad_words
from tessera.engine.metrics import Metric
from tessera.engine.offline import Job, OfflineEngine
from tessera.errors import RequestError
from tessera.llm.given import PromptInput, conversations, for_each, prompts_of
from tessera.llm.progress_bar import MakeBar, ProgressBar
from tessera.request import RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.text import Tokenizer
from tessera.text.worker import ChatJob, Start
from tessera.text.workers import BlockingTextWorkers

KEYWORDS = tuple(flag for flag in ENGINE_FLAGS if not flag.online)
"""The flags that LLM takes. The others limit a queue of requests, which an offline call does not have."""


class LLM:
    """A model in this process: `LLM("folder").generate("Hello")`; LLM("ORGANIZATION/NAME") fetches it from the hub, and
    without a model it is the bundled demo. Close it, or use it in a `with`.

    flags: the engine's flags of `tessera serve`, with underscores (docs/llm.md lists them); None is the default. It is
    synchronous and starts no event loop, so it works in a notebook; generate() and chat() may be called from several
    threads, one runs at a time. Ctrl-C ends what runs and leaves the LLM usable. Raises TypeError for a keyword that is
    no flag, ConfigError, ModelError, PlatformError, MemoryBudgetError."""

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None) for one in KEYWORDS),
        ]
    )

    def __init__(self, model: str | Path | None = None, **flags: Any) -> None:
        check_names("LLM", flags, KEYWORDS)
        config = build_config(model, **flags)
        self._sampling_defaults: dict[str, Any] = dict(config.model.sampling_defaults)
        # It loads beside the engine.
        self._text = BlockingTextWorkers(Start(config.model.tokenizer)) if config.model.tokenizer else None
        with ExitStack() as undo:
            undo.callback(self._end_text)
            engine = Engine(dataclasses.replace(config, embedded=True))
            undo.callback(engine.close)
            if self._text is not None:
                self._text.ready()
            undo.pop_all()
        self._offline = OfflineEngine(engine, None if self._text is None else self._text.vocabulary)
        self._tokenizer: Tokenizer | None = None
        self._enqueued: list[Job] = []
        self._enqueuing = threading.Lock()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool | MakeBar = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The answers, in the order of the prompts. A prompt is a text, token ids, {"prompt": text} or
        {"prompt_token_ids": ids}; sampling_params: one for all, or one for each. Raises RequestError before anything
        runs, EngineStepError where a step fails."""
        jobs = self._jobs(prompts_of(prompts, prompt_token_ids), sampling_params, priority)
        return self._answers(jobs, use_tqdm)

    def enqueue(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Keeps prompts, as generate() takes them, for wait_for_completion(); nothing is computed before. Returns the
        request_id of each one's answer. Raises RequestError, and keeps none of them then."""
        jobs = self._jobs(prompts_of(prompts, None), sampling_params, priority)
        with self._enqueuing:
            self._enqueued += jobs
        return [job.request_id for job in jobs]

    def wait_for_completion(self, *, use_tqdm: bool | MakeBar = True) -> list[RequestOutput]:
        """Computes all that was enqueued since the last call: the answers, in that order. It is enqueued no more, even
        where this fails. Raises EngineStepError where a step fails."""
        with self._enqueuing:
            jobs, self._enqueued = self._enqueued, []
        return self._answers(jobs, use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | MakeBar = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """One answer for a conversation, or for each of a list of them; chat_template: source, in place of the model's.
        Raises as generate() does."""
        self._offline.check_usable()
        if self._text is None:
            raise no_tokenizer()
        rendered = [
            self._text.chat(
                ChatJob(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs,
                    template=chat_template,
                    max_tokens=self._offline.max_model_len,
                    text=True,
                )
            )
            for conversation in conversations(messages)
        ]
        prompts = [Tokenized(chat.ids[0], chat.text) for chat in rendered]
        return self._answers(self._jobs(prompts, sampling_params, None), use_tqdm)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | MakeBar = False,
    ) -> list[BeamSearchOutput]:
        """The beam_width best answers to each prompt, the best first: transformers' beams. Raises as generate()
        does."""
        self._offline.check_usable()
        eos, asked = self._offline.config.model.eos_token_ids, SamplingParams(max_tokens=params.max_tokens)
        prepared = [self._prepared(index, prompt, asked) for index, prompt in enumerate(prompts_of(prompts, None))]
        searches = [BeamSearch(prompt.ids.tolist(), params, eos, prompt.max_tokens) for prompt in prepared]
        with ProgressBar(len(searches), use_tqdm) as bar:
            self._offline.search(searches, bar.ended)
        return [search.output(self._offline.front.vocabulary) for search in searches]

    def get_tokenizer(self) -> Tokenizer:
        """The model's own, in this process: a tokenizer.json that takes any time on a text is not stopped here, as it
        is in generate() and chat(). Raises RequestError where there is none (skip_tokenizer_init)."""
        if self._text is None:
            raise RequestError("No tokenizer is loaded (skip_tokenizer_init).")
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_folder(self._offline.config.model.tokenizer)
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() takes where it is given none: the model's own recommendation (generation_config.json)."""
        return SamplingParams(**self._sampling_defaults)

    def abort(self) -> None:
        """From another thread: ends the call that runs, within a step. Its answers are as far as they came, with
        finish_reason "abort"."""
        self._offline.abort()

    def reset_prefix_cache(self) -> bool:
        """Forgets every prefix: what is asked next is computed from nothing. True, as nothing runs between calls."""
        return self._offline.reset_prefix_cache()

    def get_metrics(self) -> list[Metric]:
        """What this LLM has done so far."""
        metrics = self._offline.front.metrics
        metrics.text_worker_restarts = 0 if self._text is None else self._text.restarts
        return list(metrics.read())

    def close(self) -> None:
        """Gives its memory back; it cannot be used after that. May be called again."""
        self._offline.close()
        self._end_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _jobs(
        self,
        prompts: Sequence[str | Sequence[int] | Tokenized],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None,
    ) -> list[Job]:
        """A job a prompt, all of them checked."""
        self._offline.check_usable()
        params = for_each(
            "sampling_params", sampling_params or self.get_default_sampling_params(), SamplingParams, len(prompts)
        )
        priorities = for_each("priority", priority or 0, int, len(prompts))
        return [
            self._offline.job(self._prepared(index, prompt, own), _whole(own), rank)
            for index, (prompt, own, rank) in enumerate(zip(prompts, params, priorities, strict=True))
        ]

    def _answers(self, jobs: Sequence[Job], use_tqdm: bool | MakeBar) -> list[RequestOutput]:
        with ProgressBar(len(jobs), use_tqdm) as bar:
            return self._offline.run(jobs, bar.add)

    def _prepared(self, index: int, prompt: str | Sequence[int] | Tokenized, params: SamplingParams) -> Prompt:
        """Raises RequestError that says which prompt it is."""
        try:
            if isinstance(prompt, str):
                prompt = self._tokenized(prompt)
            ids, text = (prompt.ids, prompt.text) if isinstance(prompt, Tokenized) else (prompt, None)
            if self._text is not None:
                self._text.check_grammar(params)
            return self._offline.front.prepare(ids, self._with_bad_words(params), text=text)
        except RequestError as error:
            raise type(error)(f"prompts[{index}]: {error.message}", param=error.param, code=error.code) from error

    def _tokenized(self, text: str) -> Tokenized:
        if self._text is None:
            raise no_tokenizer()
        (ids,) = self._text.encode([text], max_tokens=self._offline.max_model_len)
        return Tokenized(ids, text)

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        if not params.bad_words:
            return params
        if self._text is None:
            raise no_bad_words()
        return with_bad_words(params, self._text.encode(bad_word_texts(params), add_special_tokens=False))

    def _end_text(self) -> None:
        if self._text is not None:
            self._text.close()


class Tokenized(NamedTuple):
    """A prompt's text and its token ids."""

    ids: Sequence[int]
    text: str | None


def _whole(params: SamplingParams) -> SamplingParams:
    """All that is wanted here is the end."""
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
