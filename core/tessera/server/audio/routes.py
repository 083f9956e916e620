"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.arrays import Array
from tessera.engine.model_tasks import check_hears
from tessera.errors import RequestError
from tessera.server.access import request_id_of
from tessera.server.audio.form import ReceivedForm, read_form
from tessera.server.audio.protocol import (
    Duration,
    TextDelta,
    TextDone,
    Transcription,
    TranscriptionForm,
    TranscriptionSegment,
    TranscriptionWord,
    VerboseTranscription,
)
from tessera.server.audio.speech_model import ServedSpeechModel
from tessera.server.context import ServerContext
from tessera.server.generation.prepare import RequestOwner, rank_of
from tessera.server.http import json_response, until_disconnect
from tessera.server.limits import AnswerAdmission
from tessera.server.openapi import JsonRoute
from tessera.server.quotas import token_budget
from tessera.server.security import client_of, tenant_of
from tessera.server.served_model import ServedModel
from tessera.server.sse import OPENAI, event, send_events
from tessera.server.task_routes import TASK_ROUTES
from tessera.server.tracing import trace_of
from tessera.speech.model import SAMPLE_RATE
from tessera.speech.segments import Segment
from tessera.speech.subtitles import srt, vtt
from tessera.speech.transcribe import TEMPERATURES, Transcript, TranscriptionOptions
from tessera.speech.words import Word

Task = Literal["transcribe", "translate"]
PATHS: Mapping[Task, str] = MappingProxyType(
    {"transcribe": "/v1/audio/transcriptions", "translate": "/v1/audio/translations"}
)
MOST_TEMPERATURE = 2.0
ALL_SECONDS = 4 * 3600
"""Of the recordings of all requests in progress together, each of which is in memory: 64 KB a second."""


def routes(context: ServerContext) -> list[JsonRoute]:
    admission = AnswerAdmission(ALL_SECONDS, "seconds of sound", "file")
    summaries: dict[Task, str] = {
        "transcribe": "What is said in a recording.",
        "translate": "What is said in a recording, in English.",
    }
    return [
        JsonRoute(
            PATHS[task],
            TranscriptionEndpoint(context, task, admission),
            summary,
            methods=("POST",),
            body=TranscriptionForm,
            body_type="multipart/form-data",
            answer=Transcription,
            stream="text/event-stream",
        )
        for task, summary in summaries.items()
    ]


class TranscriptionEndpoint:
    """The ASGI application of one of the routes."""

    def __init__(self, context: ServerContext, task: Task, admission: AnswerAdmission) -> None:
        self._context, self._task, self._admission = context, task, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._context.counts.one_generating():
            received = await read_form(scope, receive)
            await until_disconnect(receive, self._answer(received, scope, receive, send))

    async def _answer(self, received: ReceivedForm, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        form = received.checked(context.counts.unknown_fields.add)
        model = context.allowed_model(form.model, scope)
        check_hears(model.engine.config.model, self._task, TASK_ROUTES)
        _check(form)
        if form.wants("word") and model.engine.config.model.pooler is None:
            raise RequestError("This model does not time words; leave word out.", param="timestamp_granularities")
        owner = _owner(model, scope)
        owner.budget.begin(0)  # its tokens are counted as they are written
        speech = ServedSpeechModel(context, model, owner, request_id_of(scope), form.seed)
        options = await _options(form, self._task, speech)
        samples = await speech.samples(bytes(received.data))
        received.data.clear()
        with self._admission.admit(tenant_of(scope), math.ceil(len(samples) / SAMPLE_RATE)):
            recording = Recording(form, self._task, Transcript(speech, options), samples)
            if form.stream:
                await send_events(send, recording.events(), OPENAI)
            else:
                await (await recording.whole())(scope, receive, send)


class Recording:
    """A recording whose transcript is due."""

    _TEXTS: ClassVar = {"text": lambda segments: f"{_text(segments)}\n", "srt": srt, "vtt": vtt}

    def __init__(self, form: TranscriptionForm, task: Task, transcript: Transcript, samples: Array) -> None:
        self._form, self._task, self._transcript, self._samples = form, task, transcript, samples
        self._seconds = len(samples) / SAMPLE_RATE
        self._usage = Duration(seconds=math.ceil(self._seconds))

    async def whole(self) -> Response:
        segments = [segment async for segment in self._transcript.segments(self._samples)]
        kind = self._form.response_format
        if kind in self._TEXTS:
            return Response(self._TEXTS[kind](segments), media_type="text/plain")
        if kind == "json":
            return json_response(Transcription(text=_text(segments), usage=self._usage))
        return json_response(
            VerboseTranscription(
                task=self._task,
                language=self._transcript.language,
                duration=self._seconds,
                text=_text(segments),
                segments=[_segment_of(segment) for segment in segments] if self._form.wants("segment") else UNSET,
                words=[_word_of(word) for one in segments for word in one.words] if self._form.wants("word") else UNSET,
                usage=self._usage,
            )
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        said = ""
        async for segment in self._transcript.segments(self._samples):
            delta = segment.text if said else segment.text.lstrip()
            said += delta
            yield event(msgspec.json.encode(TextDelta(delta=delta)))
        yield event(msgspec.json.encode(TextDone(text=said.rstrip(), usage=self._usage)))


def _check(form: TranscriptionForm) -> None:
    """Raises RequestError."""
    if not 0 <= form.temperature <= MOST_TEMPERATURE:
        raise RequestError(f"temperature must be 0 to {MOST_TEMPERATURE:g}.", param="temperature")
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise RequestError(
            "timestamp_granularities is of response_format verbose_json; leave it out.", param="timestamp_granularities"
        )
    if form.stream and form.response_format not in ("json", "text"):
        raise RequestError("A stream has response_format json; leave it out.", param="response_format")


async def _options(form: TranscriptionForm, task: Task, speech: ServedSpeechModel) -> TranscriptionOptions:
    """Raises RequestError."""
    known, timed = speech.speech.languages, speech.speech.timed
    language = (form.language or "").strip().lower() or None
    if not timed:
        _check_untimed(form, known, language)
    if language is not None and language not in (known or ("en",)):
        names = ", ".join(sorted(known)) if known else "en"
        raise RequestError(
            f"This model does not know the language {language[:16]!r}; it knows {names}.", param="language"
        )
    return TranscriptionOptions(
        task=task,
        language=language,
        prompt=await speech.tokens(form.prompt) if form.prompt and form.prompt.strip() else (),
        temperatures=(form.temperature,) if form.temperature else TEMPERATURES,
        hears_silence=form.response_format == "verbose_json",
        has_words=form.wants("word"),
    )


def _check_untimed(form: TranscriptionForm, languages: Collection[str], language: str | None) -> None:
    """Whether a model that writes no times can follow a form. languages: the codes of those that it is told. Raises
    RequestError."""
    if form.prompt and form.prompt.strip():
        raise RequestError("This model is not shown what came before; leave prompt out.", param="prompt")
    if not languages and language is not None:
        raise RequestError("This model is not told a language; leave language out.", param="language")
    if languages and language is None:
        raise RequestError("This model has to be told the language that is spoken; send language.", param="language")


def _owner(model: ServedModel, scope: Scope) -> RequestOwner:
    """Without a cache salt: prompts of these models share no prefix."""
    client, rank = client_of(scope), rank_of(scope)
    tenant, budget, trace = tenant_of(scope), token_budget(scope), trace_of(scope)
    return RequestOwner(0, "", tenant, model.feature_args, client, rank, budget, trace)


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def _segment_of(segment: Segment) -> TranscriptionSegment:
    return TranscriptionSegment(
        id=segment.id,
        seek=segment.seek,
        start=round(segment.start, 3),
        end=round(segment.end, 3),
        text=segment.text,
        tokens=[*segment.tokens],
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob or 0.0,
    )


def _word_of(word: Word) -> TranscriptionWord:
    return TranscriptionWord(word=word.text.strip(), start=round(word.start, 3), end=round(word.end, 3))
