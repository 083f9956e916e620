"""Images in the chats of each API, on their way from the request to the engine."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.config.pooler import PoolerConfig
from tessera.errors import MediaLimitError, RequestError
from tessera.media.item import MAX_INPUT_BYTES, MediaPlaces, MediaReady, ProcessedMedia, digest_of
from tessera.media.rules import MediaRules
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.pooling_models import EMBEDDER

PLACEHOLDER, FEATURE = "<image>", "~"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}(<image>){% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


@dataclass
class FakeMedia:
    """An image has as many features as its file has bytes."""

    feature_ids: tuple[int, ...]
    restarts: int = 0
    asked: list[tuple[bytes, str]] = field(default_factory=list)

    async def ready(self) -> MediaReady:
        return MediaReady({"image": MediaPlaces(PLACEHOLDER, self.feature_ids)})

    async def process(
        self, modality: str, data: bytes, options: Mapping[str, Any] | None = None, owner: str = ""
    ) -> ProcessedMedia:
        self.asked.append((data, owner))
        if data == b"broken":
            raise RequestError("The image is truncated or broken; send it anew.")
        if data == b"large":
            raise MediaLimitError("Processing this image needed more memory than its size allows.")
        if data == b"vast":
            half = np.broadcast_to(np.uint8(0), MAX_INPUT_BYTES // 2 + 1)
            return ProcessedMedia("image", bytes(32), FEATURE, 1, {"pixel_values": half})
        inputs = {"pixel_values": np.frombuffer(data, np.uint8)}
        return ProcessedMedia("image", digest_of(inputs), FEATURE * len(data), len(data), inputs)


def engine() -> FakeEngine:
    made = FakeEngine(script=Script(pieces="A cat."), template=TEMPLATE)
    assert made.tokenizer is not None
    return FakeEngine(
        script=Script(pieces="A cat."),
        template=TEMPLATE,
        media=FakeMedia(tuple(made.tokenizer.encode(FEATURE, add_special_tokens=False))),
    )


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}}


def chat(*parts: dict[str, Any] | str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


TEXT = {"type": "text", "text": "What is it?"}
BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"cat").decode()},
}
INPUT = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url(b"cat")}]
OTHERS = [
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [TEXT, BLOCK]}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": INPUT}]}),
    ("/api/chat", {"messages": [{"role": "user", "content": "", "images": [BLOCK["source"]["data"]]}]}),
    ("/api/generate", {"prompt": "What is it?", "images": [BLOCK["source"]["data"]]}),
]


async def test_a_chat_shows_its_images_to_the_model() -> None:
    async with in_process(engine()) as api:
        text = {"type": "image_url", "image_url": url(b"no")}
        response = await api.post("/v1/chat/completions", chat("a", image(b"cat"), "b", text))
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == "A cat."
        (call,) = api.engine.calls
        assert api.engine.tokenizer.decode(call.prompt) == "<user>a(~~~)b(~~)"
        assert [one.inputs["pixel_values"].tobytes() for one in call.media] == [b"cat", b"no"]
        assert [one.places.tolist() for one in call.media] == [[8, 9, 10], [14, 15]]
        response = await api.post("/tokenize", chat("a", image(b"cat")))
        assert response.json()["count"] == len("<user>a(~~~)")


@pytest.mark.parametrize(("path", "body"), OTHERS)
async def test_each_api_has_its_own_form_of_images(path: str, body: dict[str, Any]) -> None:
    async with in_process(engine()) as api:
        response = await api.post(path, {"model": MODEL, **body})
        assert response.status_code == 200, response.text
        (call,) = api.engine.calls
        assert "(~~~)" in api.engine.tokenizer.decode(call.prompt)
        assert [one.inputs["pixel_values"].tobytes() for one in call.media] == [b"cat"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([image(b"cat"), image(b"broken")], "Image 2: The image is truncated"),
        ([image(b"large")], "Image 1: Processing this image needed more memory"),
        ([image(b"a")] * 3, "at most 2 images"),
        ([image(b"vast")] * 2, "The first 2 images together are larger than a request may be"),
        (
            [{"type": "image_url", "image_url": {"url": "http://images.example/a.png"}}],
            "Image 1: This server fetches no",
        ),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "Image 1: This server reads no files"),
        ([{"type": "image_url", "image_url": {"url": "data:text/html;base64,AAAA"}}], "not of an image"),
        ([{"type": "image_url"}], "messages[0].content[0].image_url is missing"),
        ([{"type": "image"}], "only text and image_url parts are supported"),
        ([image(b"cat"), "and ~"], "has 4 tokens for images, and its images need 3"),
    ],
)
async def test_images_that_cannot_be_shown_are_the_requests_fault(parts: list[Any], message: str) -> None:
    async with in_process(engine()) as api:
        response = await api.post("/v1/chat/completions", chat(*parts))
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
        assert api.engine.calls == []


async def test_a_file_is_read_below_the_allowed_folder(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"cat")
    settings = ServerSettings(media=MediaRules(local_path=str(tmp_path)))
    async with in_process(engine(), settings) as api:
        part = {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/cat.png"}}
        assert (await api.post("/v1/chat/completions", chat(part))).status_code == 200
        assert [data for data, _ in api.engine.media.asked] == [b"cat"]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", chat(image(b"cat"))), *OTHERS])
async def test_models_without_a_tower_refuse_images(path: str, body: dict[str, Any]) -> None:
    async with in_process(FakeEngine(template=TEMPLATE)) as api:
        response = await api.post(path, {"model": MODEL, **body})
        assert response.status_code == 400
        assert "support" in response.text
        assert api.engine.calls == []


async def test_what_prompts_may_hold_is_said() -> None:
    async with in_process(engine()) as api:
        (card,) = (await api.client.get("/v1/models")).json()["data"]
        assert card["input_modalities"] == ["text", "image"]
        assert "vision" in (await api.post("/api/show", {"model": MODEL})).json()["capabilities"]


async def test_each_beam_has_the_images_of_its_prompt() -> None:
    made = engine()
    async with in_process(made) as api:
        body = {**chat("what", image(b"xyz")), "use_beam_search": True, "n": 2, "max_tokens": 2}
        assert (await api.client.post("/v1/chat/completions", json=body)).status_code == 200
    assert len(made.calls) == 1 + 2
    assert all(len(call.media) == 1 and call.media[0].size == 3 for call in made.calls)


# ---- requests that pool ----------------------------------------------------------------------------------------------


def embedder(pooler: PoolerConfig = EMBEDDER) -> FakeEngine:
    made = engine()
    return FakeEngine(template=TEMPLATE, media=made.media, pooler=pooler, generates=False)


async def prompts_of(path: str, body: dict[str, Any], pooler: PoolerConfig = EMBEDDER) -> list[tuple[str, list[bytes]]]:
    """The text of each prompt that a request becomes, and the files of its images."""
    async with in_process(embedder(pooler)) as api:
        response = await api.post(path, {"model": MODEL, **body})
        assert response.status_code == 200, response.text
        prompts = [one.prompt for one in sorted(api.engine.pooled, key=lambda call: call.request_id)]
        assert path != "/v1/embeddings" or response.json()["usage"]["prompt_tokens"] == sum(
            len(one.ids) for one in prompts
        )
        decode = api.engine.tokenizer.decode
        return [
            (decode(one.ids.tolist()), [media.inputs["pixel_values"].tobytes() for media in one.media])
            for one in prompts
        ]


async def test_the_chat_of_an_embedding_shows_its_images() -> None:
    found = await prompts_of("/v1/embeddings", {"messages": chat("a", image(b"cat"))["messages"]})
    assert found == [("<user>a(~~~)", [b"cat"])]


ITEMS = [{"text": "a"}, {"image": url(b"cat")}, {"text": "b", "image": url(b"no")}]
SHOWN = [("a", []), ("<user>(~~~)", [b"cat"]), ("<user>(~~)b", [b"no"])]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ITEMS}),
        ("/v1/embeddings", {"input": [{"content": [TEXT | {"text": "a"}]}, *ITEMS[1:]]}),
        ("/v2/embed", {"inputs": [{"content": chat(*parts)["messages"][0]["content"]} for parts in
                                  (["a"], [image(b"cat")], [image(b"no"), "b"])]}),
        ("/rerank", {"query": "a", "documents": ITEMS[1:]}),
        ("/score", {"queries": {"text": "a"}, "documents": ITEMS[1:]}),
    ],
)  # fmt: skip
async def test_texts_and_images_are_inputs_beside_each_other(path: str, body: dict[str, Any]) -> None:
    assert [(text.removeprefix("<s>"), files) for text, files in await prompts_of(path, body)] == SHOWN


async def test_an_instruction_is_a_message_of_the_system_where_the_template_writes_inputs() -> None:
    trained = replace(EMBEDDER, message={}, prompts={"query": "Find."}, default_prompt="query")
    found = await prompts_of("/v1/embeddings", {"input": ITEMS[:2]}, trained)
    assert found == [("<system>Find.<user>a", []), ("<system>Find.<user>(~~~)", [b"cat"])]


async def test_a_reranked_image_is_shown_by_its_text_alone() -> None:
    async with in_process(embedder()) as api:
        answer = (await api.post("/rerank", {"query": "a", "documents": ITEMS[1:]})).json()
        assert [one["document"] for one in sorted(answer["results"], key=lambda one: one["index"])] == [
            {},
            {"text": "b"},
        ]


@pytest.mark.parametrize(
    ("items", "param", "message"),
    [
        ([{"image": url(b"cat")}, {"image": url(b"broken")}], "input[1]", "Image 1: The image is truncated"),
        ([{"text": "a"}, {}], "input[1]", "must have a text, an image or both"),
        ([{"text": "a", "content": []}], "input[0]", "must have a text, an image or both"),
        (
            [{"content": [{"type": "video_url", "video_url": "data:"}]}],
            "input[0]",
            "of another type than text and image_url",
        ),
        ([{"content": [{"type": "text"}]}], "input[0]", "text is missing"),
        ([{"image": url(b"vast")}] * 2, "input[1]", "together are larger than a request may be"),
        ([{"image": "cat.png"}], "input[0]", "Image 1"),
    ],
)
async def test_an_input_that_cannot_be_shown_is_named(items: list[Any], param: str, message: str) -> None:
    async with in_process(embedder()) as api:
        response = await api.post("/v1/embeddings", {"input": items})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert message in error["message"]
        assert api.engine.pooled == []


async def test_a_prompt_with_images_is_not_cut() -> None:
    async with in_process(embedder()) as api:
        response = await api.post("/v1/embeddings", {"input": ITEMS[1:2], "truncate_prompt_tokens": 8})
        assert response.status_code == 400
        assert api.engine.pooled == []


async def test_embedders_without_a_tower_refuse_images() -> None:
    async with in_process(FakeEngine(template=TEMPLATE, pooler=EMBEDDER, generates=False)) as api:
        response = await api.post("/v1/embeddings", {"input": ITEMS[1:2]})
        assert response.status_code == 400
        assert "takes no images" in response.json()["error"]["message"]
