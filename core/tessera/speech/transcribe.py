"""A recording of any length written down, window after window, as openai-whisper's transcribe() does (arXiv:2212.04356,
section 4.5).

Each window begins where the last whole segment ended, so that nothing is cut in two. Where an answer repeats itself,
or its tokens are unlikely, it is drawn again at a higher temperature. What was written so far is shown to the model as
what came before, unless a high temperature made it.

A model that writes no times is asked once for each window, which ends at a quiet place, and knows nothing of what came
before.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tessera.arrays import Array
from tessera.media.placed import PlacedMedia
from tessera.speech.alignment import token_starts
from tessera.speech.cuts import window_end
from tessera.speech.model import SAMPLE_RATE, Heard, SpeechModel, Written
from tessera.speech.segments import Segment, TokenSpan, spans_of, texts_of
from tessera.speech.words import Word, words_of

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Those tried one after the other where none is chosen."""
MOST_COMPRESSION = 2.4
LEAST_LOGPROB = -1.0
MOST_NO_SPEECH = 0.6
ENGLISH = "en"
_STEADY = 0.5
"""Up to this temperature, what was written is shown to the next window."""


@dataclass(frozen=True)
class TranscriptionOptions:
    """How a recording is to be written down."""

    # "transcribe", or "translate" to English.
    task: str = "transcribe"
    # Its code; None: the one that the first window is heard in.
    language: str | None = None
    # Tokens of what came before, as names and spellings that occur.
    prompt: Sequence[int] = ()
    # Tried in order.
    temperatures: Sequence[float] = TEMPERATURES
    # Whether answers have times, without which a recording has no more than a window.
    timed: bool = True
    # Whether the probability of silence is wanted of each window, of a model that says it.
    hears_silence: bool = False
    # Whether the times of words are wanted.
    has_words: bool = False


@dataclass(frozen=True)
class WindowAnswer:
    """What was written of a window. heard: None if the model was not asked."""

    sound: PlacedMedia
    written: Written
    text: str
    temperature: float
    heard: Heard | None

    @property
    def mean_logprob(self) -> float:
        return self.written.logprob / max(1, self.written.num_drawn)

    @property
    def compression(self) -> float:
        data = self.text.encode()
        return len(data) / len(zlib.compress(data)) if data else 0.0

    @property
    def is_silence(self) -> bool:
        unlikely = self.mean_logprob < LEAST_LOGPROB
        return unlikely and self.heard is not None and self.heard.no_speech > MOST_NO_SPEECH

    @property
    def is_good(self) -> bool:
        return self.mean_logprob >= LEAST_LOGPROB and self.compression <= MOST_COMPRESSION


class Transcript:
    """A transcript while it is written. language: its code, known before the first segment is yielded."""

    def __init__(self, model: SpeechModel, options: TranscriptionOptions) -> None:
        self._model, self._options = model, options
        english = model.speech.timed and not model.speech.languages
        self.language = options.language or (ENGLISH if english else "")
        self._timed = model.speech.timed and options.timed
        # Tokens so far, of which the model is shown the last; with times, without which it would write none either.
        self._before = [*options.prompt]

    async def segments(self, samples: Array) -> AsyncGenerator[Segment, None]:
        """samples: [samples] float32, at SAMPLE_RATE. Raises TesseraError."""
        speech = self._model.speech
        width, start, number = round(speech.window * SAMPLE_RATE), 0, 0
        while start < len(samples):
            end = start + width if speech.timed else window_end(samples, start, width)
            window = samples[start:end]
            answer = await self._answer(window)
            at, seconds = start / SAMPLE_RATE, len(window) / SAMPLE_RATE
            spans, reached = [TokenSpan(tuple(answer.written.tokens), 0.0, seconds)], seconds
            if answer.is_silence:
                spans = []
            elif self._timed:
                spans, reached = spans_of(answer.written.tokens, speech, seconds)
            words: Sequence[Sequence[Word]] = [()] * len(spans)
            if self._options.has_words:
                words = await self._words(answer, spans, at, seconds)
            for span, own in zip(spans, words, strict=True):
                text = await self._text(span.tokens) if len(spans) > 1 else answer.text
                if not text.strip() or span.start >= span.end:
                    continue
                if speech.timed:
                    self._before += span.tokens
                else:
                    text = text.strip() if _needs_no_space(text.strip()) else f" {text.strip()}"
                yield Segment(
                    id=number,
                    seek=round(at * 100),
                    start=at + span.start,
                    end=at + min(span.end, seconds),
                    text=text,
                    tokens=span.tokens,
                    temperature=answer.temperature,
                    avg_logprob=answer.mean_logprob,
                    compression_ratio=answer.compression,
                    no_speech_prob=None if answer.heard is None else answer.heard.no_speech,
                    words=own,
                )
                number += 1
            if answer.temperature > _STEADY:
                self._before = []
            # An answer that ends where it begins says no more of the window.
            start += round(reached * SAMPLE_RATE) or len(window)

    async def _answer(self, window: Array) -> WindowAnswer:
        """Of the temperatures, the first whose answer is good, or silence; otherwise the last."""
        speech = self._model.speech
        sound = await self._model.encode(window)
        heard = None
        if speech.timed and not self.language:
            heard = await self._model.detect(sound, language=True)
            self.language = heard.language
        prompt = self._prompt()
        for temperature in self._options.temperatures:
            if speech.timed and heard is None and self._options.hears_silence:
                heard, written = await self._heard_and_written(prompt, sound, temperature)
            else:
                written = await self._write(prompt, sound, temperature)
            answer = WindowAnswer(sound, written, await self._text(written.tokens), temperature, heard)
            if not speech.timed:
                break
            if heard is None and answer.mean_logprob < LEAST_LOGPROB:
                heard = await self._model.detect(sound, language=False)
                answer = replace(answer, heard=heard)
            if answer.is_good or answer.is_silence:
                break
        return answer

    async def _heard_and_written(
        self, prompt: Sequence[int], sound: PlacedMedia, temperature: float
    ) -> tuple[Heard, Written]:
        """Both at once, so that a step makes what both see of the window."""
        listening = asyncio.create_task(self._model.detect(sound, language=False))
        try:
            written = await self._write(prompt, sound, temperature)
            return await listening, written
        finally:
            listening.cancel()

    async def _text(self, tokens: Sequence[int]) -> str:
        speech = self._model.speech
        return await self._model.decode(texts_of(tokens, speech) if speech.timed else tokens)

    async def _write(self, prompt: Sequence[int], sound: PlacedMedia, temperature: float) -> Written:
        most, speech = self._model.max_model_len - len(prompt), self._model.speech
        most = min(self._model.max_model_len // 2, most) if speech.timed else most
        return await self._model.write(prompt, sound, temperature=temperature, max_tokens=most, timed=self._timed)

    async def _words(
        self, answer: WindowAnswer, spans: Sequence[TokenSpan], at: float, seconds: float
    ) -> list[list[Word]]:
        """Of each span of an answer. at: where its window begins, in seconds. seconds: of the window that are in the
        recording."""
        speech, texts = self._model.speech, [texts_of(span.tokens, self._model.speech) for span in spans]
        tokens = [token for text in texts for token in text]
        if not tokens:
            return [[] for _ in spans]
        begin = speech.begin(self.language, self._options.task, timed=False)
        attention = await self._model.align([*begin, *tokens, speech.end], answer.sound)
        # The token before says where one begins, and the last one of the text where it ends.
        rows, positions = attention[len(begin) - 1 : -1], max(1, round(seconds / speech.resolution))
        times = await asyncio.to_thread(token_starts, rows, positions) * speech.resolution + at
        own: list[list[Word]] = [[] for _ in spans]
        ends = np.cumsum([len(text) for text in texts])
        for word in await words_of(tokens, self.language, self._model.decode):
            timed = replace(word, start=float(times[word.first]), end=float(times[word.last]))
            own[int(np.searchsorted(ends, word.first, side="right"))].append(timed)
        return own

    def _prompt(self) -> list[int]:
        speech = self._model.speech
        begin = speech.begin(self.language, self._options.task, timed=self._timed)
        before = self._before[-(self._model.max_model_len // 2 - 1) :]
        return [speech.previous, *before, *begin] if before else begin


def _needs_no_space(text: str) -> bool:
    """Whether a text begins in a script that has no spaces between words: Chinese, Japanese, Thai and the like."""
    return "\u0e00" <= text[:1] <= "\u0eff" or "\u2e80" <= text[:1] <= "\ua4cf" or "\uf900" <= text[:1] <= "\ufaff"
