"""A served model as transcribing needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING

from tessera.arrays import Array, int32
from tessera.config.modalities import encoder_length
from tessera.config.speech import SpeechConfig
from tessera.errors import EngineStepError, RequestError
from tessera.features.transcription import RULES, TIMED, UNTIMED
from tessera.media.placed import PlacedMedia
from tessera.media.sound import wav_file
from tessera.pooling_params import PoolingParams
from tessera.request import CompletionOutput, RequestMetrics
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.server.context import ServerContext
from tessera.server.generation.prepare import RequestOwner
from tessera.server.served_model import ServedModel
from tessera.server.tracing import EndedRequest
from tessera.speech.model import SAMPLE_RATE, Heard, Written

if TYPE_CHECKING:
    from tessera.media.workers import MediaWorkers
    from tessera.text.workers import TextWorkers

MODALITY = "audio"


class ServedSpeechModel:
    """One recording's use of a model that is served. seed: None draws one for each answer."""

    def __init__(
        self, context: ServerContext, model: ServedModel, owner: RequestOwner, name: str, seed: int | None
    ) -> None:
        """name: of the request, without the number of the window. Raises RequestError for a model that is served
        without its processor or its tokenizer."""
        engine = model.engine
        assert engine.config.model.speech is not None, "the route has checked it"
        if engine.media is None or model.text is None:
            raise RequestError("This server reads no recordings: the model's tokenizer or its processor is missing.")
        self._engine, self._owner, self._seed = engine, owner, seed
        self._model_name = model.name
        self._media: MediaWorkers = engine.media
        self._text: TextWorkers = model.text
        self._admission, self._name, self._numbers = context.token_admission, name, count()
        self.speech: SpeechConfig = engine.config.model.speech
        self._length = encoder_length(engine.config.model.checkpoint)
        self.max_model_len = engine.info.max_model_len

    async def samples(self, data: bytes) -> Array:
        """The recording in a file: [samples] float32, at SAMPLE_RATE. Raises RequestError, MediaWorkerError."""
        return (await self._media.waveform(data, SAMPLE_RATE, owner=self._owner.client)).samples

    async def encode(self, samples: Array) -> PlacedMedia:
        media = await self._media.process(MODALITY, wav_file(samples, SAMPLE_RATE), owner=self._owner.client)
        return PlacedMedia(MODALITY, media.digest, int32(), media.inputs, media.num_rows or self._length)

    async def detect(self, sound: PlacedMedia, *, language: bool) -> Heard:
        silence, languages = self.speech.no_speech, self.speech.languages
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprob_token_ids=[silence],
            allowed_token_ids=[*languages.values()] if language else None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        answer = await self._answer([self.speech.start], sound, params)
        likely = {} if not answer.logprobs else answer.logprobs[0]
        codes = {token: code for code, token in languages.items()}
        heard = codes.get(answer.token_ids[0], "") if language and answer.token_ids else ""
        return Heard(heard, math.exp(likely[silence].logprob) if silence in likely else 0.0)

    async def write(
        self, prompt: Sequence[int], sound: PlacedMedia, *, temperature: float, max_tokens: int, timed: bool
    ) -> Written:
        params = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            logprobs=0,
            seed=self._seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={RULES: TIMED if timed else UNTIMED} if self.speech.timed else None,
        )
        answer = await self._answer(prompt, sound, params)
        tokens = [token for token in answer.token_ids if token != self.speech.end]
        return Written(tokens, answer.cumulative_logprob or 0.0, len(answer.token_ids))

    async def align(self, tokens: Sequence[int], sound: PlacedMedia) -> Array:
        engine, name = self._engine, f"{self._name}-{next(self._numbers)}"
        prompt = await engine.prepare_pooled(tokens, PoolingParams("align"), media=[sound])
        times = RequestMetrics()

        def ended() -> list[EndedRequest]:
            return [EndedRequest(name, self._model_name, None, len(tokens), 0, times)]

        with self._admission.admit(self._owner.tenant, 1), self._owner.trace.follow(ended):
            output = await engine.encode(prompt, prompt.params, name, **self._owner.arguments)
            times = output.metrics
        return output.outputs.data.reshape(len(tokens), -1, self._length)

    async def decode(self, tokens: Sequence[int]) -> str:
        return self._text.vocabulary.decode([*tokens])

    async def tokens(self, text: str) -> list[int]:
        """Of a text that comes before."""
        (ids,) = await self._text.encode([f" {text.strip()}"], False, owner=self._owner.client)
        return ids

    async def _answer(self, prompt: Sequence[int], sound: PlacedMedia, params: SamplingParams) -> CompletionOutput:
        engine, name = self._engine, f"{self._name}-{next(self._numbers)}"
        prepared = await engine.prepare_prompt(prompt, await engine.prepare_params(params), media=[sound])
        num_generated, times = 0, RequestMetrics()

        def ended() -> list[EndedRequest]:
            return [EndedRequest(name, self._model_name, params, len(prompt), num_generated, times)]

        admitted = self._admission.admit(self._owner.tenant, params.max_tokens or 1)
        with admitted, self._owner.trace.follow(ended):
            async with aclosing(engine.generate(prepared, params, name, **self._owner.arguments)) as outputs:
                async for output in outputs:
                    if output.finished:
                        answer, times = output.outputs[0], output.metrics
                        num_generated = len(answer.token_ids)
                        if answer.finish_reason not in ("stop", "length"):
                            raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
                        self._owner.budget.generated(num_generated)
                        return answer
        raise EngineStepError("The engine ended an answer without a word.")
