"""LLM: the offline front door. An engine in this process, a list of prompts in, their answers out in order."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from tqdm import tqdm  # type: ignore[import-untyped]  # it has no annotations and no stubs of its own

from tessera.config import build_config
from tessera.engine.admission import Prompt
from tessera.engine.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from tessera.engine.engine import Engine
from tessera.engine.metrics import Metric
from tessera.engine.offline import Job, OfflineEngine
from tessera.errors import RequestError
from tessera.request import RequestOutput, RequestOutputKind, SamplingParams
from tessera.text import ChatTemplate, Tokenizer

PromptInput = str | Sequence[int] | Mapping[str, Any]
MakeBar = Callable[..., Any]


class LLM:
    """A model in this process: `LLM("folder").generate("Hello")`; LLM("ORGANIZATION/NAME") fetches it from the hub, and
    without a model it is the bundled demo. Close it, or use it in a `with`.

    Keywords are those of `tessera serve`, with underscores; None is the default of each. It is synchronous and starts
    no event loop, so it works in a notebook; generate() and chat() may be called from several threads, one runs at a
    time. Ctrl-C ends what runs and leaves the LLM usable. Raises ConfigError, ModelError, PlatformError,
    MemoryBudgetError."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        skip_tokenizer_init: bool = False,
        served_model_name: str | None = None,
        tensor_parallel_size: int | None = None,
        dtype: str | None = None,
        load_format: str | None = None,
        seed: int | None = None,
        max_model_len: int | None = None,
        max_logprobs: int | None = None,
        generation_config: str | None = None,
        override_generation_config: Mapping[str, Any] | None = None,
        gpu_memory_utilization: float | None = None,
        kv_cache_memory_bytes: int | None = None,
        block_size: int | None = None,
        enable_prefix_caching: bool | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        enable_chunked_prefill: bool | None = None,
        scheduling_policy: str | None = None,
        threads: int | None = None,
        steps_in_flight: int | None = None,
        enforce_eager: bool = False,
        platform: str | None = None,
        no_fallback: bool = False,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        download_dir: str | None = None,
        hf_token: str | None = None,
        trust_remote_code: bool = False,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(_unknown_keyword(next(iter(unknown)), LLM.__init__))
        config = build_config(
            model=None if model is None else str(model),
            tokenizer=None if tokenizer is None else str(tokenizer),
            skip_tokenizer_init=skip_tokenizer_init or None,
            served_model_name=served_model_name,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            load_format=load_format,
            seed=seed,
            max_model_len=max_model_len,
            max_logprobs=max_logprobs,
            generation_config=generation_config,
            override_generation_config=override_generation_config,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_chunked_prefill=enable_chunked_prefill,
            scheduling_policy=scheduling_policy,
            threads=threads,
            steps_in_flight=steps_in_flight,
            enforce_eager=enforce_eager or None,
            platform=platform,
            no_fallback=no_fallback or None,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            download_dir=download_dir,
            hf_token=hf_token,
            trust_remote_code=trust_remote_code or None,
        )
        self._sampling_defaults: dict[str, Any] = dict(config.model.sampling_defaults)
        self._tokenizer = Tokenizer.from_folder(config.model.tokenizer) if config.model.tokenizer else None
        self._offline = OfflineEngine(Engine(dataclasses.replace(config, embedded=True)), self._tokenizer)

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
        given = _prompts(prompts, prompt_token_ids)
        return self._generate(given, sampling_params, use_tqdm=use_tqdm, priority=priority, add_special_tokens=True)

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
        tokenizer = self.get_tokenizer()
        template = ChatTemplate(chat_template or tokenizer.chat_templates, tokenizer.special_tokens)
        prompts = [
            template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
            )
            for conversation in _conversations(messages)
        ]
        return self._generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=None, add_special_tokens=False)

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
        prepared = [
            self._prepared(index, prompt, asked, add_special_tokens=True)
            for index, prompt in enumerate(_prompts(prompts, None))
        ]
        searches = [BeamSearch(prompt.ids.tolist(), params, eos, prompt.max_tokens) for prompt in prepared]
        with ProgressBar(len(searches), use_tqdm) as bar:
            self._offline.search(searches, bar.ended)
        return [search.output(self._tokenizer) for search in searches]

    def get_tokenizer(self) -> Tokenizer:
        """Raises RequestError where there is none (skip_tokenizer_init)."""
        if self._tokenizer is None:
            raise RequestError("There is no tokenizer (skip_tokenizer_init).")
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
        return list(self._offline.front.metrics.read())

    def close(self) -> None:
        """Gives its memory back; it cannot be used after that. May be called again."""
        self._offline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        use_tqdm: bool | MakeBar,
        priority: int | Sequence[int] | None,
        add_special_tokens: bool,
    ) -> list[RequestOutput]:
        self._offline.check_usable()
        params = _for_each(
            "sampling_params", sampling_params or self.get_default_sampling_params(), SamplingParams, len(prompts)
        )
        priorities = _for_each("priority", priority or 0, int, len(prompts))
        jobs = [
            Job(index, self._prepared(index, prompt, own, add_special_tokens), _whole(own), rank)
            for index, (prompt, own, rank) in enumerate(zip(prompts, params, priorities, strict=True))
        ]
        with ProgressBar(len(jobs), use_tqdm) as bar:
            return self._offline.run(jobs, bar.add)

    def _prepared(
        self, index: int, prompt: str | Sequence[int], params: SamplingParams, add_special_tokens: bool
    ) -> Prompt:
        """Raises RequestError that says which prompt it is."""
        try:
            return self._offline.front.prepare(prompt, params, add_special_tokens=add_special_tokens)
        except RequestError as error:
            raise RequestError(f"prompts[{index}]: {error.message}", param=error.param, code=error.code) from error


class ProgressBar:
    """How many prompts are done, and how fast tokens went in and came out."""

    def __init__(self, total: int, use_tqdm: bool | MakeBar) -> None:
        make = tqdm if use_tqdm is True else use_tqdm
        self._bar = (
            make(total=total, desc="Processed prompts", dynamic_ncols=True, postfix=_speed(0, 0, 1))
            if make and total
            else None
        )
        self._begin = time.monotonic()
        self._tokens_in = 0
        self._tokens_out = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, output: RequestOutput) -> None:
        """One prompt is done."""
        if self._bar is None:
            return
        self._tokens_in += len(output.prompt_token_ids)
        self._tokens_out += sum(len(completion.token_ids) for completion in output.outputs)
        self._bar.postfix = _speed(self._tokens_in, self._tokens_out, time.monotonic() - self._begin)
        self._bar.update(1)

    def ended(self, search: BeamSearch) -> None:
        """The beams of a prompt are found."""
        if self._bar is None:
            return
        self._tokens_in += len(search.prompt)
        self._tokens_out += search.num_tokens
        self._bar.postfix = _speed(self._tokens_in, self._tokens_out, time.monotonic() - self._begin)
        self._bar.update(1)


def _speed(tokens_in: int, tokens_out: int, seconds: float) -> str:
    return f"est. speed input: {tokens_in / seconds:.2f} toks/s, output: {tokens_out / seconds:.2f} toks/s"


# ---- what a caller may write ------------------------------------------------


def _unknown_keyword(name: str, function: Callable[..., Any]) -> str:
    known = [
        p.name for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    near = difflib.get_close_matches(name, known, n=1)
    return f"LLM() got an unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _prompts(
    prompts: PromptInput | Sequence[PromptInput] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[str | Sequence[int]]:
    if (prompts is None) == (prompt_token_ids is None):
        raise RequestError("Give either prompts or prompt_token_ids.", param="prompts")
    given: Any = prompts if prompts is not None else prompt_token_ids
    one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence) or _is_ids(given)
    return [_prompt(prompt) for prompt in ([given] if one else given)]


def _prompt(given: Any) -> str | Sequence[int]:
    if isinstance(given, Mapping):
        known = [name for name in ("prompt_token_ids", "prompt") if given.get(name) is not None]
        if not known:
            raise RequestError('A prompt as a dictionary has "prompt" or "prompt_token_ids".', param="prompts")
        given = given[known[0]]
    if isinstance(given, str) or (isinstance(given, Sequence) and not isinstance(given, bytes)):
        return given
    raise RequestError(f"A prompt is a text or a list of token ids, not {type(given).__name__}.", param="prompts")


def _is_ids(given: Sequence[Any]) -> bool:
    return len(given) > 0 and all(isinstance(one, int) for one in given)


def _conversations(messages: Any) -> list[Sequence[Mapping[str, Any]]]:
    return [messages] if len(messages) > 0 and isinstance(messages[0], Mapping) else list(messages)


def _for_each(name: str, given: Any, kind: type, count: int) -> list[Any]:
    many = [given] * count if isinstance(given, kind) else list(given)
    if len(many) != count:
        raise RequestError(f"There are {count} prompts, but {len(many)} {name}.", param=name)
    return many


def _whole(params: SamplingParams) -> SamplingParams:
    """All that is wanted here is the end."""
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
