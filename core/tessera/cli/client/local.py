"""This program's own engine as a client. It runs in its own process, so torch is never loaded in this one."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.cli.client import AnswerDelta, Message, Prompt, RequestUsage, Sampling
from tessera.cli.model_text import TemplateOptions, media_workers_of, text_workers_of
from tessera.cli.report import ProgressLine
from tessera.config import EngineConfig, Supervision
from tessera.errors import ModelError, RequestError
from tessera.log import LastingStream
from tessera.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine
    from tessera.engine.input_processor import Prompt as EnginePrompt
    from tessera.engine.messages import EngineInfo
    from tessera.media.item import ProcessedMedia
    from tessera.media.placed import PlacedMedia
    from tessera.text.workers import TextWorkers


@dataclass(frozen=True)
class RequestDefaults:
    """Defaults for what a request does not set. sampling: fields of SamplingParams. chat_tokens: maximum length of a
    chat's answer; None fills the context."""

    template: TemplateOptions = field(default_factory=TemplateOptions)
    sampling: Sampling = field(default_factory=dict)
    chat_tokens: int | None = None


class LocalClient:
    """See start()."""

    def __init__(self, engine: AsyncEngine, defaults: RequestDefaults) -> None:
        self._engine = engine
        self._defaults = defaults

    @property
    def model(self) -> str:
        return self._engine.config.model.served_name

    @property
    def max_model_len(self) -> int | None:
        return self._engine.info.max_model_len

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]:
        """Raises ModelError if there is no chat template."""
        if self._engine.text is None or not self._engine.text.has_template:
            raise ModelError(f"'{self.model}' has no chat template; set --chat-template, or use tessera complete.")
        return self._chat(self._engine.text, messages, {"max_tokens": self._defaults.chat_tokens, **sampling})

    def complete(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]:
        return self._generate(prompt, sampling, add_special_tokens=True)

    async def _chat(
        self, text: TextWorkers, messages: Sequence[Message], sampling: Sampling
    ) -> AsyncGenerator[AnswerDelta, None]:
        from tessera.media.placement import placed, replacements_of
        from tessera.text.worker import ChatJob

        media, shown = await self._images(messages)
        kwargs = self._defaults.template.kwargs or {}
        job = ChatJob(shown, template_kwargs=kwargs, max_tokens=self.max_model_len)
        ready = await self._engine.media.ready() if self._engine.media is not None and media else None
        if ready is not None:
            job.placeholders, job.replacements = ready.placeholders, replacements_of(media, ready)
        ids = (await text.chat(job)).ids[0]
        places = () if ready is None else placed(ids, media, ready)
        async with aclosing(self._generate(ids, sampling, add_special_tokens=False, media=places)) as pieces:
            async for piece in pieces:
                yield piece

    async def _images(self, messages: Sequence[Message]) -> tuple[list[ProcessedMedia], list[Message]]:
        """The images of a chat, and its messages as templates take them. Raises RequestError, MediaWorkerError."""
        if all(isinstance(message["content"], str) for message in messages):
            return [], [*messages]
        from tessera.llm.media import MediaTaken, without_media

        model, workers = self._engine.config.model, self._engine.media
        if workers is None:
            raise RequestError(f"'{self.model}' takes no images; ask without --image.")
        shown, files = without_media(
            messages, MediaTaken({name: model.most_media(name) for name in model.modalities}, 0)
        )
        return [await workers.process(file.modality, file.data) for file in files], shown

    async def _generate(
        self,
        prompt: Prompt,
        sampling: Mapping[str, Any],
        *,
        add_special_tokens: bool,
        media: Sequence[PlacedMedia] = (),
    ) -> AsyncGenerator[AnswerDelta, None]:
        params = SamplingParams(
            **{
                "output_kind": RequestOutputKind.DELTA,
                "detokenize": self._engine.tokenizer is not None,
                **self._defaults.sampling,
                **sampling,
            }
        )
        count = 0
        engine = self._engine
        ready: Prompt | EnginePrompt = prompt
        if media and not isinstance(prompt, str):
            ready = await engine.prepare_prompt(prompt, await engine.prepare_params(params), media=media)
        async with aclosing(engine.generate(ready, params, add_special_tokens=add_special_tokens)) as outputs:
            async for output in outputs:
                (answer,) = output.outputs
                count += len(answer.token_ids)
                usage = RequestUsage(len(output.prompt_token_ids), count) if output.finished else None
                yield AnswerDelta(answer.text, len(answer.token_ids), answer.finish_reason, usage)


@asynccontextmanager
async def start(config: EngineConfig, defaults: RequestDefaults | None = None) -> AsyncIterator[LocalClient]:
    """Starts the engine, showing progress, and ends it on exit. The engine is not restarted if it dies, because a
    restart would distort measurements. Raises TesseraError."""
    defaults = defaults or RequestDefaults()
    async with running_engine(config, defaults.template, Supervision(max_restarts=0)) as engine:
        yield LocalClient(engine, defaults)


@asynccontextmanager
async def running_engine(
    config: EngineConfig, template: TemplateOptions, supervision: Supervision
) -> AsyncIterator[AsyncEngine]:
    """An engine with its text workers, both of which end on exit. Shows progress. Raises TesseraError."""
    from tessera.engine.async_engine import AsyncEngine

    async with AsyncExitStack() as ending:
        text = text_workers_of(config, template)
        if text is not None:
            ending.push_async_callback(text.close)
        media = media_workers_of(config)
        if media is not None:
            ending.push_async_callback(media.close)
        progress = ProgressLine(LastingStream(sys.stderr))
        try:
            engine = await AsyncEngine.start(
                config, text=text, media=media, on_progress=progress, supervision=supervision
            )
            ending.push_async_callback(engine.shutdown)
            if text is not None:
                await text.ready()
            if media is not None:
                await media.ready()
        finally:
            progress.close()
        yield engine
