"""Recordings on their way from a form to a transcript, with an engine that answers by a script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openai
import pytest

from tessera.config.pooler import PoolerConfig
from tessera.config.speech import SpeechConfig
from tessera.errors import RequestError
from tessera.features.transcription import RULES, TIMED
from tessera.media.item import ProcessedMedia, Waveform
from tessera.media.sound import read_sound
from tessera.server.settings import ServerSettings
from tessera.speech.model import SAMPLE_RATE
from tests.server.conftest import Api, in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script, byte_tokenizer

PATH = "/v1/audio/transcriptions"
FIRST = byte_tokenizer().encode("A", add_special_tokens=False)[0]
SPEECH = SpeechConfig(
    start=200,
    end=199,
    no_timestamps=210,
    languages={"en": 201, "de": 202},
    tasks={"transcribe": 203, "translate": 204},
)


@dataclass
class FakeMedia:
    """A file's text says how many seconds it has."""

    restarts: int = 0
    windows: list[int] = field(default_factory=list)

    async def waveform(self, data: bytes, rate: int, owner: str = "") -> Waveform:
        if not data.isdigit():
            raise RequestError("The sound is broken.")
        return Waveform(np.zeros(int(data) * rate, np.float32), rate)

    # Positions that the encoder makes; 0: always as many.
    positions: int = 0

    async def process(self, modality: str, data: bytes, options: Any = None, owner: str = "") -> ProcessedMedia:
        self.windows.append(len(read_sound(data, SAMPLE_RATE, 31.0)) // SAMPLE_RATE)
        inputs = {"input_features": np.zeros((1, 1, 2), np.float32)}
        return ProcessedMedia(modality, bytes(32), "", self.positions, inputs)


def engine(speech: SpeechConfig | None = SPEECH, positions: int = 0) -> FakeEngine:
    media = FakeMedia(positions=positions)
    checkpoint = {"architectures": ["WhisperForConditionalGeneration"], "max_source_positions": 2}
    script, shown = Script(pieces="ABC", first_id=FIRST), {"modalities": ("audio",), "checkpoint": checkpoint}
    pooler = PoolerConfig(("align",), "last", activation="identity")
    return FakeEngine(script=script, media=media, speech=speech, pooler=pooler, **shown)


async def send(api: Api, file: bytes = b"5", path: str = PATH, **fields: Any) -> Any:
    return await api.client.post(path, files={"file": ("a.wav", file)}, data=fields)


async def test_openai_s_client_reads_every_form_of_a_transcript() -> None:
    options: Any = {"api_key": "none", "max_retries": 0}
    async with on_socket(engine()) as server, openai.AsyncOpenAI(base_url=f"{server.url}/v1", **options) as client:
        asked = {"file": ("a.wav", b"40"), "model": MODEL}
        plain = await client.audio.transcriptions.create(**asked, language="en")
        assert (plain.text, plain.usage.type, plain.usage.seconds) == ("ABCABC", "duration", 40)
        verbose = await client.audio.transcriptions.create(
            **asked,
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            temperature=0.5,
            prompt="Tessera",
        )
        assert (verbose.language, verbose.duration, verbose.text) == ("en", 40, "ABCABC")
        assert [(one.start, one.end, one.temperature) for one in verbose.segments] == [(0, 30, 0.5), (30, 40, 0.5)]
        subtitles = await client.audio.transcriptions.create(**asked, language="en", response_format="vtt")
        assert subtitles.startswith("WEBVTT\n\n00:00.000 --> 00:30.000\nABC\n")
        assert (await client.audio.transcriptions.create(**asked, language="en", response_format="text")) == "ABCABC\n"
        stream = await client.audio.transcriptions.create(**asked, language="en", stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
        assert ("".join(event.delta for event in events[:2]), events[2].text) == ("ABCABC", "ABCABC")


async def test_times_of_words_are_found_by_a_request_of_their_own() -> None:
    async with in_process(made := engine()) as api:
        response = await send(
            api, b"31", language="en", response_format="verbose_json", **{"timestamp_granularities[]": "word"}
        )
    said = response.json()
    assert "segments" not in said
    assert said["words"] == [
        {"word": "ABC", "start": 0.0, "end": 0.02},
        {"word": "ABC", "start": 30.0, "end": 30.02},
    ]
    prompts = [[*call.prompt.ids] for call in made.pooled]
    assert prompts == [[200, 201, 203, 210, *range(FIRST, FIRST + 3), 199]] * 2
    assert [call.params.task for call in made.pooled] == ["align"] * 2
    assert [len(call.prompt.media) for call in made.pooled] == [1, 1]


async def test_who_wants_numbers_is_told_what_the_model_does() -> None:
    async with in_process(engine()) as api:
        response = await api.client.post("/pooling", json={"model": MODEL, "input": "A"})
    assert response.status_code == 400
    assert "does not embed texts; it can write down speech" in response.json()["error"]["message"]


async def test_a_window_is_asked_as_its_model_is_asked() -> None:
    made = engine()
    async with in_process(made, ServerSettings()) as api:
        assert (await send(api, b"31", language="de", prompt="Hi", seed="7")).status_code == 200
    assert made.media.windows == [30, 1]
    first, second = made.calls
    begin = [200, 202, 203]
    hi = made.tokenizer.encode(" Hi", add_special_tokens=False)
    assert first.prompt == [208, *hi, *begin]
    assert second.prompt == [208, *hi, *range(FIRST, FIRST + 3), *begin]
    assert (first.params.extra_args, first.params.seed, first.params.logprobs) == ({RULES: TIMED}, 7, 0)
    assert [(one.modality, one.length) for one in first.media] == [("audio", 2)]
    async with in_process(heard := engine(), ServerSettings()) as api:
        heard.script = Script(pieces="x", first_id=202)
        response = await send(api, path="/v1/audio/translations", response_format="verbose_json")
    assert response.json()["language"] == "de"
    assert heard.calls[0].params.allowed_token_ids == (201, 202)
    assert heard.calls[1].prompt == [200, 202, 204]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"language": "xx"}, "does not know the language 'xx'; it knows de, en"),
        ({"response_format": "pdf"}, "response_format is wrong"),
        ({"temperature": "9"}, "temperature must be 0 to 2"),
        ({"temperature": "hot"}, "temperature is wrong"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities is of response_format verbose_json"),
        ({"stream": "true", "response_format": "srt"}, "A stream has response_format json"),
        ({"include[]": "logprobs"}, "include is not supported here"),
        ({"prompt": "x" * 2**17}, "have at most 65536 bytes"),
        ({"model": "other"}, "other"),
    ],
)
async def test_what_is_wrong_is_said(fields: dict[str, str], said: str) -> None:
    async with in_process(engine()) as api:
        response = await send(api, **fields)
    assert response.status_code in (400, 404)
    assert said in response.json()["error"]["message"]


async def test_a_model_without_times() -> None:
    made = engine(SpeechConfig(start=200, end=199), positions=7)
    async with in_process(made) as api:
        response = await send(api, b"31", response_format="verbose_json")
        wrong = [await send(api, **fields) for fields in ({"language": "en"}, {"prompt": "Hi"})]
    assert (response.json()["text"], response.json()["language"]) == ("ABC ABC", "")
    assert [call.prompt for call in made.calls] == [[200], [200]]
    assert made.calls[0].params.extra_args is None
    assert [one.length for one in made.calls[0].media] == [7]
    said = [answer.json()["error"]["message"] for answer in wrong]
    assert said == [
        "This model is not told a language; leave language out.",
        "This model is not shown what came before; leave prompt out.",
    ]


async def test_what_is_no_recording_is_refused() -> None:
    async with in_process(engine()) as api:
        assert (await send(api, b"noise")).json()["error"]["message"] == "The sound is broken."
        bodies = [
            await api.client.post(PATH, data={"model": MODEL}, files={"other": ("a", b"x")}),
            await api.client.post(PATH, files=[("file", ("a", b"1")), ("file", ("b", b"1"))]),
            await api.client.post(PATH, json={"file": "a"}),
            await api.client.post(PATH, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=y"}),
        ]
    assert [body.status_code for body in bodies] == [400, 400, 415, 400]
    assert "file is missing" in bodies[0].json()["error"]["message"]


async def test_other_models_say_what_they_do() -> None:
    async with in_process(FakeEngine()) as api:
        response = await send(api)
        assert "does not write down speech" in response.json()["error"]["message"]
    async with in_process(engine()) as api:
        response = await api.chat()
        assert "it can write down speech (/v1/audio/transcriptions)" in response.json()["error"]["message"]
        (card,) = (await api.client.get("/v1/models")).json()["data"]
        assert card["tasks"] == ["transcribe", "translate"]
    async with in_process(engine(SpeechConfig(start=200, end=199, no_timestamps=210))) as api:
        response = await send(api, path="/v1/audio/translations")
        assert (
            "does not translate speech; it can write down speech (/v1/audio/transcriptions)"
            in response.json()["error"]["message"]
        )


async def test_a_form_may_hold_fields_that_are_not_known() -> None:
    async with in_process(engine()) as api:
        response = await send(api, language="en", chunking_strategy="auto", hotwords="a")
        assert json.loads(response.text)["text"] == "ABC"
        assert 'unknown_request_fields_total{field="hotwords"} 1' in (await api.client.get("/metrics")).text
