"""Features over HTTP, as a user starts the server: structured outputs, and a feature of a stranger's plugin."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.served import Served

ROOT = Path(__file__).parents[2]
CHOICES = ["red", "green", "ultramarine"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the stranger's plugin by its entry point."""
    site = tmp_path_factory.mktemp("site")
    described = site / "tessera_even-0.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tessera-even\nVersion: 0.1\n")
    (described / "entry_points.txt").write_text("[tessera]\neven = tests.platforms.fake_feature\n")
    paths = [str(site), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def server(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the bundled demo, two steps in flight."""
    arguments = ["--features", "structured_outputs,even=2", "--steps-in-flight", "2", "--served-model-name", "demo"]
    with Served(arguments, tmp_path_factory.mktemp("log") / "log", environment=installed) as served:
        yield served


@pytest.fixture
def api(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(api: openai.OpenAI, asked: Any, **fields: Any) -> Any:
    extra = {"structured_outputs": asked} if asked is not None else {}
    fields = {"prompt": "Once", "max_tokens": 40, "temperature": 1.5, **fields}
    return api.completions.create(model="demo", extra_body={**extra, **fields.pop("extra_body", {})}, **fields)


def test_completions_and_chats_are_what_their_grammar_allows(api: openai.OpenAI) -> None:
    assert complete(api, {"choice": CHOICES}).choices[0].text in CHOICES
    answer = complete(api, {"regex": "[a-z]{5}-[0-9]{3}"}, n=4, seed=7).choices
    assert all(re.fullmatch("[a-z]{5}-[0-9]{3}", choice.text) for choice in answer)
    assert {choice.finish_reason for choice in answer} == {"stop"}
    chat = api.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "A colour?"}],
        temperature=1.5,
        extra_body={"structured_outputs": {"choice": CHOICES}},
    )
    assert chat.choices[0].message.content in CHOICES


def test_a_stream_says_all_of_it(api: openai.OpenAI) -> None:
    chunks = list(complete(api, {"regex": "(one|two|three), four"}, stream=True))
    assert re.fullmatch("(one|two|three), four", "".join(chunk.choices[0].text for chunk in chunks))
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"regex": "(a"}, "structured_outputs.regex cannot be used: unclosed group (at character 1)."),
        ({"regex": "a(?=b)"}, "look-around, including look-ahead and look-behind, is not supported (at character 2)."),
        ({"json": {"uniqueItems": True}}, "json.uniqueItems cannot be used: only items of at most 64 values are kept"),
        ({"choice": []}, "structured_outputs.choice takes 1 to 1024 texts, got 0."),
        ({}, "json, json_object, grammar, structural_tag, got none."),
    ],
)
def test_a_grammar_that_cannot_be_used_is_a_400_in_openai_s_form(
    api: openai.OpenAI, asked: dict[str, Any], said: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(api, asked, stream=stream)
    assert refused.value.param.startswith("structured_outputs")
    assert said in refused.value.message
    assert "\n" not in refused.value.body["message"]


def test_fields_that_together_allow_no_token_are_a_400(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="its fields together allow no token"):
        complete(api, {"regex": "[a-z]{3}"}, extra_body={"allowed_token_ids": [2]})


def test_beams_are_not_masked(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot be combined with use_beam_search"):
        complete(api, {"regex": "a"}, extra_body={"use_beam_search": True})


def test_many_grammars_at_once_beside_plain_requests(api: openai.OpenAI) -> None:
    plain = complete(api, None, seed=5).choices[0].text
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        asked = {"regex": f"{number}[a-z]{{8}}"} if number % 2 else None
        answers[number] = complete(api, asked, seed=5).choices[0].text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in answers.items():
        assert re.fullmatch(f"{number}[a-z]{{8}}", text) if number % 2 else text == plain


def test_a_strangers_feature_has_its_flag_and_its_request_fields(api: openai.OpenAI) -> None:
    def ids(**given: Any) -> list[int]:
        answer = complete(api, None, extra_body={"return_token_ids": True, "vllm_xargs": given}).choices[0]
        return list(answer.token_ids)

    even = ids(even=7)
    assert len(even) == 7
    assert not any(token % 2 for token in even)
    pushed = ids(push=1000.0)
    assert pushed
    assert not any(token % 2 for token in pushed)
    assert any(token % 2 for token in ids(push=0))
    with pytest.raises(openai.BadRequestError, match="even must be at least 1, got 0"):
        ids(even=0)
    with pytest.raises(openai.BadRequestError, match="even must not be 13"):
        ids(even=13)
    with pytest.raises(openai.BadRequestError, match="Unknown extra_args"):
        ids(odd=1)


def test_what_is_not_enabled_is_not_served(installed: dict[str, str], tmp_path: Path) -> None:
    with (
        Served(
            ["--features", "none", "--served-model-name", "demo"], tmp_path / "log", environment=installed
        ) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api,
    ):
        with pytest.raises(openai.BadRequestError, match="structured_outputs is off here"):
            complete(api, {"regex": "a"})
        with pytest.raises(openai.BadRequestError, match="Unknown extra_args"):
            complete(api, None, extra_body={"vllm_xargs": {"push": 1}})
