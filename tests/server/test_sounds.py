"""Sounds in chats, on their way from the request to the engine, also beside images."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.errors import RequestError
from tessera.media.item import MediaPlaces, MediaReady, ProcessedMedia, digest_of
from tessera.media.rules import MediaRules
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script

FEATURES = {"image": "~", "audio": "^", "video": "`"}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}(<{{ part.type }}>){% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
DATA = base64.b64encode(b"woof").decode()
SOUND = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
BY_URL = {"type": "audio_url", "audio_url": {"url": f"data:audio/mpeg;base64,{DATA}"}}
IMAGE = {"type": "image_url", "image_url": f"data:image/png;base64,{base64.b64encode(b'cat').decode()}"}


class FakeMedia:
    """A sound, or an image, has as many features as its file has bytes."""

    restarts = 0

    def __init__(self, feature_ids: Mapping[str, tuple[int, ...]]) -> None:
        self._feature_ids = feature_ids

    async def ready(self) -> MediaReady:
        return MediaReady({name: MediaPlaces(f"<{name}>", ids) for name, ids in self._feature_ids.items()})

    async def process(
        self, modality: str, data: bytes, options: Mapping[str, Any] | None = None, owner: str = ""
    ) -> ProcessedMedia:
        if data == b"broken":
            raise RequestError("The sound is truncated or broken; send it anew.")
        inputs = {"input_features": np.frombuffer(data, np.uint8)}
        return ProcessedMedia(modality, digest_of(inputs), FEATURES[modality] * len(data), len(data), inputs)


def engine(*modalities: str) -> FakeEngine:
    made = FakeEngine(script=Script(pieces="A dog."), template=TEMPLATE)
    assert made.tokenizer is not None
    ids = {name: tuple(made.tokenizer.encode(FEATURES[name], add_special_tokens=False)) for name in modalities}
    return FakeEngine(script=Script(pieces="A dog."), template=TEMPLATE, media=FakeMedia(ids), modalities=modalities)


def chat(*parts: dict[str, Any] | str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


async def test_a_chat_lets_the_model_hear_its_sounds_and_see_its_images() -> None:
    async with in_process(engine("image", "audio")) as api:
        response = await api.post("/v1/chat/completions", chat("a", SOUND, "b", IMAGE, BY_URL))
        assert response.status_code == 200, response.text
        (call,) = api.engine.calls
        assert api.engine.tokenizer.decode(call.prompt) == "<user>a(^^^^)b(~~~)(^^^^)"
        assert [one.modality for one in call.media] == ["audio", "image", "audio"]
        assert [one.places.tolist() for one in call.media] == [[8, 9, 10, 11], [15, 16, 17], [20, 21, 22, 23]]
        items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, SOUND]}]
        response = await api.post("/v1/responses", {"model": MODEL, "input": items})
        assert response.status_code == 200, response.text
        assert [one.modality for one in api.engine.calls[1].media] == ["audio"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([SOUND, {**SOUND, "input_audio": {"data": "YnJva2Vu"}}], "Sound 2: The sound is truncated"),
        ([SOUND] * 3, "at most 2 sounds"),
        ([{**SOUND, "input_audio": {"data": "?"}}], "Sound 1: The sound is no base64"),
        ([{**SOUND, "input_audio": {"data": "A" * 28_000_000}}], "Sound 1: A sound has at most 20971520 bytes"),
        ([{**BY_URL, "audio_url": "http://sounds.example/a.mp3"}], "Sound 1: This server fetches no sounds"),
        ([{**BY_URL, "audio_url": "file:///etc/passwd"}], "Sound 1: This server reads no files; send the sound"),
        ([{**BY_URL, "audio_url": "data:text/html;base64,AAAA"}], "'text/html', and not of a sound"),
        ([{"type": "input_audio"}], "messages[0].content[0].input_audio is missing"),
        ([IMAGE], "only text and input_audio and audio_url parts are supported"),
        ([SOUND, "and ^"], "has 5 tokens for sounds, and its sounds need 4"),
    ],
)
async def test_sounds_that_cannot_be_heard_are_the_requests_fault(parts: list[Any], message: str) -> None:
    async with in_process(engine("audio")) as api:
        response = await api.post("/v1/chat/completions", chat(*parts))
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]["message"]
        assert api.engine.calls == []


async def test_a_file_is_read_below_the_allowed_folder(tmp_path: Path) -> None:
    (tmp_path / "dog.wav").write_bytes(b"woof")
    settings = ServerSettings(media=MediaRules(local_path=str(tmp_path)))
    async with in_process(engine("audio"), settings) as api:
        part = {"type": "audio_url", "audio_url": {"url": f"file://{tmp_path}/dog.wav"}}
        assert (await api.post("/v1/chat/completions", chat(part))).status_code == 200


@pytest.mark.parametrize("modalities", [(), ("image",)])
@pytest.mark.parametrize("part", [SOUND, BY_URL])
async def test_models_that_hear_nothing_refuse_sounds(modalities: tuple[str, ...], part: dict[str, Any]) -> None:
    async with in_process(engine(*modalities) if modalities else FakeEngine(template=TEMPLATE)) as api:
        response = await api.post("/v1/chat/completions", chat(part))
        assert response.status_code == 400
        assert f"is '{part['type']}': only text" in response.json()["error"]["message"]
        assert api.engine.calls == []
