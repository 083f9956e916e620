"""OpenAI's wire types for transcriptions and translations."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tessera.server.openapi import field_schema

AnswerFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["segment", "word"]


class TranscriptionForm(msgspec.Struct, kw_only=True):
    """The fields of the form."""

    # The recording: WAV, MP3, FLAC, Ogg; MP4, M4A and WebM where PyAV is installed.
    file: Annotated[str, field_schema(format="binary")]
    # None: the first that is served.
    model: str | None = None
    # The code of the recording's language, such as en; None: it is heard.
    language: str | None = None
    # Text that could have come before, such as names that occur.
    prompt: str | None = None
    response_format: AnswerFormat = "json"
    # 0: higher ones are tried where an answer is bad.
    temperature: float = 0.0
    # Of verbose_json; []: segments.
    timestamp_granularities: list[Granularity] = []
    # Events with the text as it is written.
    stream: bool = False
    seed: int | None = None
    # Windows are as the model takes them, whatever it says.
    chunking_strategy: str | None = None

    def wants(self, what: Granularity) -> bool:
        """Whether verbose_json has their times."""
        return what in (self.timestamp_granularities or ["segment"])


class Duration(msgspec.Struct, kw_only=True):
    """Usage: the length of the recording, rounded up."""

    type: Literal["duration"] = "duration"
    seconds: int


class Transcription(msgspec.Struct, kw_only=True):
    """response_format json."""

    text: str
    usage: Duration


class TranscriptionSegment(msgspec.Struct, kw_only=True):
    """Times in seconds; tokens and figures as of openai-whisper."""

    id: int
    # Where its window begins, in hundredths of a second.
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionWord(msgspec.Struct, kw_only=True):
    """Times in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, kw_only=True):
    """response_format verbose_json."""

    task: str
    # Its code.
    language: str
    # Of the recording, in seconds.
    duration: float
    text: str
    # Unless the request wants times of words alone.
    segments: list[TranscriptionSegment] | UnsetType = UNSET
    # If the request wants their times.
    words: list[TranscriptionWord] | UnsetType = UNSET
    usage: Duration


class TextDelta(msgspec.Struct, kw_only=True):
    """An event: the next part of the text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TextDone(msgspec.Struct, kw_only=True):
    """The last event."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: Duration
