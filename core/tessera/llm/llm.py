"""LLM, the offline API: an engine in this process that turns a list of prompts into a list of completions."""

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
from tessera.config.pooler import PoolingTask
from tessera.engine.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams, check_beams
from tessera.engine.engine import Engine
from tessera.engine.input_processor import (
    PooledPrompt,
    Prompt,
    bad_word_texts,
    no_bad_words,
    no_tokenizer,
    with_bad_words,
)
from tessera.engine.metrics import Metric
from tessera.engine.offline import Job, OfflineEngine
from tessera.engine.pooling import TextMessage, instructed
from tessera.engine.scoring import READS_PAIRS, scoring_params, scoring_task
from tessera.engine.truncation import TextLimit
from tessera.errors import RequestError
from tessera.llm.batch_encoding import EncodingLimit, encode_together
from tessera.llm.inputs import (
    Conversations,
    LoRARequests,
    PromptType,
    TextOrMedia,
    conversations,
    for_each,
    keywords_of,
    lora_args_of,
    prompts_of,
    prompts_with_media_of,
    refuse_others,
)
from tessera.llm.media import MediaFile, MediaTaken, PromptWithMedia, without_media
from tessera.llm.progress_bar import MakeBar, ProgressBar
from tessera.llm.scores import numbered_pairs, pairs_of, scored, texts_to_score
from tessera.media.item import ProcessedMedia
from tessera.media.messages import MediaStart
from tessera.media.placed import PlacedMedia
from tessera.media.placement import placed, replacements_of
from tessera.pooling_params import PoolingParams
from tessera.request import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.text import Tokenizer
from tessera.text.blocking_workers import BlockingTextWorkers
from tessera.text.worker import ChatJob, Start
from tessera.text_pair import TextPair, type_columns

KEYWORDS = tuple(flag for flag in ENGINE_FLAGS if not flag.online)
"""The flags that LLM accepts. The others are for servers: limits of a request queue, names of --lora-modules."""


class LLM:
    """A model in this process: `LLM("folder").generate("Hello")`. LLM("ORGANIZATION/NAME") downloads a model from the
    hub; without a model, the bundled demo is used. Call close() or use a `with` statement.

    flags: the engine flags of `tessera serve`, with underscores (docs/llm.md lists them); None means the default. LLM
    is synchronous and starts no event loop, so it works in a notebook. generate() and chat() may be called from several
    threads; one call runs at a time. Ctrl-C ends the running call and leaves the LLM usable. A keyword of vLLM's that
    asks for what is done anyway is a warning. Raises TypeError for an unknown keyword, ConfigError, ModelError,
    PlatformError or MemoryBudgetError.

    others, of methods: vLLM's further keywords; a RequestError says what to do instead where they ask for anything."""

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None) for one in KEYWORDS),
        ]
    )

    def __init__(self, model: str | Path | None = None, **flags: Any) -> None:
        flags = keywords_of(flags, {one.name for one in KEYWORDS})
        check_names("LLM", flags, KEYWORDS)
        config = build_config(model, **flags)
        self._sampling_defaults: dict[str, Any] = dict(config.model.sampling_defaults)
        pooler = config.model.pooler
        # The tokenizer loads in parallel with the engine.
        start = Start(
            config.model.tokenizer,
            allow_additional_properties=config.allow_additional_properties,
            eos_token_ids=config.model.eos_token_ids,
            pair_instruction=None if pooler is None else pooler.pair_instruction,
        )
        media = MediaStart.from_model(config.model)
        self._text = BlockingTextWorkers(start, media) if config.model.tokenizer else None
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
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        priority: int | Sequence[int] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Returns the completions in the order of the prompts. A prompt is a string, token ids, {"prompt": text},
        {"prompt_token_ids": ids} or {"prompt": text, "multi_modal_data": {"image": images, "video": videos, "audio":
        sounds}}, where the text has the model's placeholder for each of them. An image is one of Pillow, a video an
        array of frames [n, height, width, 3] or (array, frames a second), a sound an array of one channel at the
        model's rate or (array, rate), and any may be the bytes of a file or a path.
        sampling_params: one for all prompts, or one per prompt; each request takes a copy. Raises RequestError before
        anything runs, and EngineStepError if a step fails."""
        refuse_others("generate", others)
        asked = prompts_with_media_of(prompts, prompt_token_ids, self._taken)
        jobs = self._jobs(asked, sampling_params, priority, lora_request)
        return self._answers(jobs, use_tqdm)

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        lora_request: LoRARequests = None,
        priority: int | Sequence[int] | None = None,
        **others: Any,
    ) -> list[str]:
        """Queues prompts, in the forms generate() accepts, for wait_for_completion(); nothing runs until then. Returns
        each prompt's request_id. Raises RequestError, in which case none of them is queued."""
        refuse_others("enqueue", others)
        asked = prompts_with_media_of(prompts, None, self._taken)
        return self._enqueue(self._jobs(asked, sampling_params, priority, lora_request))

    def enqueue_chat(
        self,
        messages: Conversations,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[str]:
        """Queues conversations, in the forms and with the keywords of chat(), as enqueue() queues prompts."""
        return self._enqueue(self._chat_jobs("enqueue_chat", messages, sampling_params, **options))

    def wait_for_completion(self, *, use_tqdm: bool | MakeBar = True, **others: Any) -> list[RequestOutput]:
        """Runs all prompts enqueued since the last call and returns their completions in that order. The queue is empty
        afterwards, even if this fails. Raises EngineStepError if a step fails."""
        refuse_others("wait_for_completion", others)
        with self._enqueuing:
            jobs, self._enqueued = self._enqueued, []
        return self._answers(jobs, use_tqdm)

    def chat(
        self,
        messages: Conversations,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Returns one completion per conversation; messages is one conversation or a list of them, whose content may
        have parts {"type": "image_url", "image_url": {"url": data URL}} and {"type": "image_pil", "image_pil": image},
        {"type": "video_url", "video_url": {"url": data URL}} and {"type": "video", "video": frames},
        and for sounds {"type": "input_audio", "input_audio": {"data": base64}}, {"type": "audio_url", "audio_url":
        {"url": data URL}} and {"type": "audio", "audio": (array, rate)}.
        chat_template: template source to use instead of the model's. Raises the same errors as generate()."""
        jobs = self._chat_jobs(
            "chat",
            messages,
            sampling_params,
            lora_request=lora_request,
            priority=priority,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            **others,
        )
        return self._answers(jobs, use_tqdm)

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: PoolingTask | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        priority: int | Sequence[int] | None = None,
        **others: Any,
    ) -> list[PoolingRequestOutput]:
        """What the model's head makes of each prompt, in the forms that generate() accepts. pooling_params: one for all
        prompts, or one per prompt. pooling_task: in place of theirs; default: theirs, and without any the model's
        first. Raises RequestError before anything runs, and EngineStepError if a step fails."""
        refuse_others("encode", others)
        self._offline.check_usable()
        pooler = self._offline.config.model.pooler
        texts = [instructed(prompt, pooler) for prompt in prompts_with_media_of(prompts, None, self._taken)]
        params: list[PoolingParams] = for_each(
            "pooling_params",
            pooling_params or PoolingParams("embed" if pooler is None else pooler.tasks[0]),
            PoolingParams,
            len(texts),
        )
        if pooling_task is not None:
            params = [msgspec.structs.replace(own, task=pooling_task) for own in params]
        ranks = for_each("priority", priority or 0, int, len(texts))
        feature_args = lora_args_of(lora_request, len(texts), enabled=self._offline.config.lora.enable)
        jobs = [
            self._offline.job(prompt, priority=rank, feature_args=args)
            for prompt, rank, args in zip(self._all_pooled(texts, params), ranks, feature_args, strict=True)
        ]
        return [PoolingRequestOutput.from_output(output) for output in self._answers(jobs, use_tqdm)]

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        **others: Any,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt, as encode() gives it."""
        refuse_others("embed", others)
        outputs = self.encode(
            prompts, pooling_params, pooling_task="embed", use_tqdm=use_tqdm, lora_request=lora_request
        )
        return [EmbeddingRequestOutput.from_pooling(output) for output in outputs]

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        **others: Any,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the model's labels for each prompt, in their order."""
        refuse_others("classify", others)
        outputs = self.encode(
            prompts, pooling_params, pooling_task="classify", use_tqdm=use_tqdm, lora_request=lora_request
        )
        return [ClassificationRequestOutput.from_pooling(output) for output in outputs]

    def reward(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        **others: Any,
    ) -> list[PoolingRequestOutput]:
        """What a reward model thinks of each prompt: numbers of each token or of each step, or of a model that
        classifies texts those of the text."""
        refuse_others("reward", others)
        self._offline.check_usable()
        pooler = self._offline.config.model.pooler
        by_text = pooler is not None and "token_classify" not in pooler.tasks
        task: PoolingTask = "classify" if by_text else "token_classify"
        return self.encode(prompts, pooling_params, pooling_task=task, use_tqdm=use_tqdm, lora_request=lora_request)

    def score(
        self,
        data_1: TextOrMedia | Sequence[TextOrMedia],
        data_2: TextOrMedia | Sequence[TextOrMedia],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: LoRARequests = None,
        **others: Any,
    ) -> list[ScoringRequestOutput]:
        """How well texts belong together: one with one, one with each of several, or each of several with the one in
        its place. Any may be an image, as a prompt with multi_modal_data. pooling_params: of a model that reads both
        texts at once, use_activation=False leaves its number as it is. Raises RequestError before anything runs, and
        EngineStepError if a step fails."""
        refuse_others("score", others)
        self._offline.check_usable()
        first, second = texts_to_score(data_1, data_2, self._taken)
        pooler = self._offline.config.model.pooler
        task = scoring_task(pooler)
        assert pooler is not None
        params = scoring_params(pooler, task, pooling_params)
        texts: Sequence[str | TextPair | PromptWithMedia | TextMessage]
        if task == READS_PAIRS:
            texts, numbers = pairs_of(first, second), None
        else:
            alone = dataclasses.replace(pooler, default_prompt=None)
            texts = [instructed(text, alone) for text in (*first, *second)]
            numbers = numbered_pairs(len(first), len(second))
        feature_args = lora_args_of(lora_request, len(texts), enabled=self._offline.config.lora.enable)
        jobs = [
            self._offline.job(prompt, feature_args=args)
            for prompt, args in zip(self._all_pooled(texts, [params] * len(texts)), feature_args, strict=True)
        ]
        outputs = [PoolingRequestOutput.from_output(output) for output in self._answers(jobs, use_tqdm)]
        return scored(task, outputs, numbers)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | MakeBar = False,
        **others: Any,
    ) -> list[BeamSearchOutput]:
        """The beam_width best completions of each prompt, best first, as transformers' beam search ranks them. Raises
        the same errors as generate()."""
        refuse_others("beam_search", others)
        self._offline.check_usable()
        check_beams(self._offline.config.model)
        eos = self._offline.config.model.eos_token_ids
        asked = SamplingParams(max_tokens=params.max_tokens, target_language=params.target_language)
        texts = prompts_of(prompts, None)
        prepared = self._all_prepared(texts, [asked] * len(texts))
        searches = [
            BeamSearch(prompt.decoded.tolist(), params, eos, prompt.max_tokens, media=prompt.media)
            for prompt in prepared
        ]
        with ProgressBar(len(searches), use_tqdm) as bar:
            self._offline.search(searches, bar.ended)
        return [search.output(self._offline.front.vocabulary) for search in searches]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, in this process. Unlike in generate() and chat(), there is no limit on the time it may
        take for a text. Raises RequestError if none is loaded (skip_tokenizer_init)."""
        if self._text is None:
            raise RequestError("No tokenizer is loaded (skip_tokenizer_init).")
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_folder(self._offline.config.model.tokenizer)
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults of generate(): the model's own recommendation (generation_config.json)."""
        return SamplingParams(**self._sampling_defaults)

    def abort(self) -> None:
        """Call from another thread to end the running call within a step. Its completions stay as far as they got, with
        finish_reason "abort"."""
        self._offline.abort()

    def reset_prefix_cache(self, **others: Any) -> bool:
        """Drops all cached prefixes. Returns True, since nothing runs between calls."""
        refuse_others("reset_prefix_cache", others)
        return self._offline.reset_prefix_cache()

    def get_metrics(self) -> list[Metric]:
        """The metrics of this LLM so far."""
        metrics = self._offline.front.metrics
        metrics.text_worker_restarts = 0 if self._text is None else self._text.restarts
        return list(metrics.read())

    def close(self) -> None:
        """Frees the memory. The LLM cannot be used afterwards; further calls of close() do nothing."""
        self._offline.close()
        self._end_text()

    def __getattr__(self, name: str) -> Any:
        """Says what to use in place of vLLM's methods and attributes."""
        from tessera.config.other_names import other_name

        other = other_name(f"LLM.{name}")
        raise AttributeError(f"'LLM' object has no attribute {name!r}" if other is None else other.refusal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _jobs(
        self,
        prompts: Sequence[str | Sequence[int] | PromptWithMedia | Tokenized],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None,
        lora_request: LoRARequests,
    ) -> list[Job]:
        """One validated job per prompt."""
        self._offline.check_usable()
        asked = for_each(
            "sampling_params", sampling_params or self.get_default_sampling_params(), SamplingParams, len(prompts)
        )
        copies = {id(own): _whole(own) for own in asked}
        params = [copies[id(own)] for own in asked]
        priorities = for_each("priority", priority or 0, int, len(prompts))
        feature_args = lora_args_of(lora_request, len(prompts), enabled=self._offline.config.lora.enable)
        for args in {tuple(args.items()): args for args in feature_args if args}.values():
            self._offline.check_feature_args(args)
        prepared = self._all_prepared(prompts, params)
        return [
            self._offline.job(prompt, own, rank, args)
            for prompt, own, rank, args in zip(prepared, params, priorities, feature_args, strict=True)
        ]

    def _chat_jobs(
        self,
        call: str,
        messages: Conversations,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        lora_request: LoRARequests = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[Job]:
        """One validated job per conversation. call: the method's name."""
        refuse_others(call, others)
        self._offline.check_usable()
        if self._text is None:
            raise no_tokenizer()
        asked = conversations(messages)
        params = sampling_params or self.get_default_sampling_params()
        prompts = []
        for conversation, own in zip(
            asked, for_each("sampling_params", params, SamplingParams, len(asked)), strict=True
        ):
            shown, files = without_media(conversation, self._taken)
            media = [self._text.process(*file) for file in files]
            chat = self._text.chat(
                ChatJob(
                    shown,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs,
                    template=chat_template,
                    max_tokens=self._most_tokens(own),
                    text=True,
                    **_replacing(self._text, media),
                )
            )
            prompts.append(Tokenized(chat.ids[0], chat.text, _placed(self._text, chat.ids[0], media)))
        return self._jobs(prompts, params, priority, lora_request)

    def _enqueue(self, jobs: list[Job]) -> list[str]:
        with self._enqueuing:
            self._enqueued += jobs
        return [job.request_id for job in jobs]

    def _most_tokens(self, params: SamplingParams) -> int | None:
        """Of a prompt as it is tokenized; None where only its end is kept."""
        return self._offline.max_model_len if params.truncate_prompt_tokens is None else None

    def _answers(self, jobs: Sequence[Job], use_tqdm: bool | MakeBar) -> list[RequestOutput]:
        with ProgressBar(len(jobs), use_tqdm) as bar:
            return self._offline.run(jobs, bar.add)

    def _all_prepared(
        self, prompts: Sequence[str | Sequence[int] | PromptWithMedia | Tokenized], params: Sequence[SamplingParams]
    ) -> list[Prompt]:
        """Raises RequestError that names a prompt's index."""
        encodings: Mapping[int, Any] = {}
        if self._text is not None:
            encodings = encode_together(self._text, prompts, [EncodingLimit(self._most_tokens(own)) for own in params])
        return [
            self._prepared(index, Tokenized(encodings[index], str(prompt)) if index in encodings else prompt, own)
            for index, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]

    def _prepared(
        self, index: int, prompt: str | Sequence[int] | PromptWithMedia | Tokenized, params: SamplingParams
    ) -> Prompt:
        """Prepares a prompt. Raises RequestError that names the prompt's index."""
        try:
            if isinstance(prompt, PromptWithMedia):
                prompt = self._tokenized(prompt.text, self._most_tokens(params), prompt.files)
            elif isinstance(prompt, str):
                prompt = self._tokenized(prompt, self._most_tokens(params))
            ids, text, media = prompt if isinstance(prompt, Tokenized) else Tokenized(prompt, None)
            if self._text is not None:
                params = self._text.check_grammar(params)
            return self._offline.front.prepare(ids, self._with_bad_words(params), text=text, media=media)
        except RequestError as error:
            raise type(error)(f"prompts[{index}]: {error.message}", param=error.param, code=error.code) from error

    def _all_pooled(
        self,
        prompts: Sequence[str | Sequence[int] | TextPair | PromptWithMedia | TextMessage],
        params: Sequence[PoolingParams],
    ) -> list[PooledPrompt]:
        """The same for prompts that are pooled."""
        encodings: Mapping[int, Any] = {}
        if self._text is not None:
            limits = {id(own): self._limit_of(own) for own in {id(own): own for own in params}.values()}
            encodings = encode_together(self._text, prompts, [limits[id(own)] for own in params])
        return [
            self._pooled(index, prompt, own, encodings.get(index))
            for index, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]

    def _limit_of(self, params: PoolingParams) -> EncodingLimit | None:
        """None for one that is not valid."""
        said = params.truncate_prompt_tokens, params.truncation_side
        try:
            return EncodingLimit(*TextLimit.from_params(*said, self._offline.max_model_len))
        except RequestError:
            return None

    def _pooled(
        self,
        index: int,
        prompt: str | Sequence[int] | TextPair | PromptWithMedia | TextMessage,
        params: PoolingParams,
        encoding: Any,
    ) -> PooledPrompt:
        """encoding: its token ids, or those of the pair; None: it is encoded here."""
        front, text = self._offline.front, prompt if isinstance(prompt, str) else None
        try:
            if not isinstance(prompt, str | TextPair | PromptWithMedia | TextMessage):
                return front.prepare_pooled(prompt, params)
            if self._text is None:
                raise no_tokenizer()
            longest = self._offline.max_model_len
            most, side = TextLimit.from_params(params.truncate_prompt_tokens, params.truncation_side, longest)
            if isinstance(prompt, PromptWithMedia):
                written = self._media_prompt(prompt, longest)
                return front.prepare_pooled(written.ids, params, text=written.text, media=written.media)
            if isinstance(prompt, TextMessage):
                job = ChatJob(prompt.messages, max_tokens=None if side else most, text=True, **prompt.options)
                chat = self._text.chat(job)
                return front.prepare_pooled(chat.ids[0], params, text=chat.text)
            if isinstance(prompt, TextPair):
                pair = encoding
                if pair is None:
                    (pair,) = self._text.encode_pairs([prompt], max_tokens=most, truncation_side=side)
                columns = type_columns(self._offline.config.model.checkpoint, pair.boundary)
                return front.prepare_pooled(pair.ids, params, columns=columns)
            ids = encoding
            if ids is None:
                (ids,) = self._text.encode([prompt], max_tokens=most, truncation_side=side)
            return front.prepare_pooled(ids, params, text=text)
        except RequestError as error:
            is_pair = isinstance(prompt, TextPair)
            place = f"data_2[{index}]" if is_pair else f"prompts[{index}]"
            param = place if is_pair else error.param
            raise type(error)(f"{place}: {error.message}", param=param, code=error.code) from error

    def _media_prompt(self, prompt: PromptWithMedia, max_tokens: int) -> Tokenized:
        """Of a request that pools, a prompt with images; without a text, the model's own prompt of an image."""
        pooler = self._offline.config.model.pooler
        if pooler is None or not pooler.image_prompt:
            return self._tokenized(prompt.text, max_tokens, prompt.files)
        if not pooler.reads_images and (prompt.text or len(prompt.files) > 1):
            raise RequestError('This model takes a text or an image, and none beside another: leave "prompt" empty.')
        text = prompt.text or pooler.image_prompt
        return self._tokenized(text, max_tokens, prompt.files, add_special_tokens=pooler.image_special_tokens)

    def _tokenized(
        self,
        text: str,
        max_tokens: int | None,
        files: Sequence[MediaFile] = (),
        *,
        add_special_tokens: bool = True,
    ) -> Tokenized:
        if self._text is None:
            raise no_tokenizer()
        media = [self._text.process(*file) for file in files]
        replacing = _replacing(self._text, media)
        (ids,) = self._text.encode([text], add_special_tokens, max_tokens=max_tokens, **replacing)
        return Tokenized(ids, text, _placed(self._text, ids, media))

    @property
    def _taken(self) -> MediaTaken:
        """What a prompt may hold beside text."""
        model = self._offline.config.model
        known = {} if self._text is None or self._text.media is None else self._text.media.places
        rate = known["audio"].rate if "audio" in known else 0
        return MediaTaken({name: model.most_media(name) for name in model.modalities}, rate)

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
    """A prompt's text, if known, and its token ids."""

    ids: Sequence[int]
    text: str | None
    media: Sequence[PlacedMedia] = ()


def _replacing(workers: BlockingTextWorkers, media: Sequence[ProcessedMedia]) -> dict[str, Any]:
    """Arguments of what tokenizes a prompt with these images and sounds."""
    if not media or workers.media is None:
        return {}
    return {"placeholders": workers.media.placeholders, "replacements": replacements_of(media, workers.media)}


def _placed(
    workers: BlockingTextWorkers, ids: Sequence[int], media: Sequence[ProcessedMedia]
) -> tuple[PlacedMedia, ...]:
    return placed(ids, media, workers.media) if media and workers.media is not None else ()


def _whole(params: SamplingParams) -> SamplingParams:
    """A checked copy. Only the final output is needed offline."""
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
