"""Videos in chats, on their way from the request to the engine."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tessera.media.rules import MediaRules
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.test_sounds import IMAGE, chat, engine

VIDEO = {
    "type": "video_url",
    "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(b'run').decode()}"},
}


async def test_a_chat_lets_the_model_see_its_videos_and_images(tmp_path: Path) -> None:
    (tmp_path / "run.mp4").write_bytes(b"runs")
    local = {"type": "video_url", "video_url": f"file://{tmp_path}/run.mp4"}
    settings = ServerSettings(media=MediaRules(local_path=str(tmp_path)))
    async with in_process(engine("image", "video"), settings) as api:
        response = await api.post("/v1/chat/completions", chat("a", VIDEO, IMAGE, local))
        assert response.status_code == 200, response.text
        (call,) = api.engine.calls
        assert [one.modality for one in call.media] == ["video", "image", "video"]
        assert [one.size for one in call.media] == [3, 3, 4]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([VIDEO] * 3, "at most 2 videos"),
        ([{**VIDEO, "video_url": "http://videos.example/a.mp4"}], "Video 1: This server fetches no videos"),
        ([{**VIDEO, "video_url": "file:///etc/passwd"}], "Video 1: This server reads no files; send the video"),
        ([{**VIDEO, "video_url": "data:text/html;base64,AAAA"}], "'text/html', and not of a video"),
        ([{"type": "video_url"}], "messages[0].content[0].video_url is missing"),
        ([IMAGE], "only text and video_url parts are supported"),
    ],
)
async def test_videos_that_cannot_be_seen_are_the_requests_fault(parts: list[Any], message: str) -> None:
    async with in_process(engine("video")) as api:
        response = await api.post("/v1/chat/completions", chat(*parts))
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]["message"]
        assert api.engine.calls == []
