"""The tokenizer and the chat template of the bundled model."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tessera.demo import folder
from tools.demo_model.generate import Dialogue, render, tools_text, training_dialogues
from tools.demo_model.table import load
from tools.demo_model.tokenizer import ENTRIES, SPECIAL, TAGS, TEMPLATE


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(folder() / "tokenizer.json"))


@pytest.fixture(scope="module")
def environment() -> Environment:
    """As engines set it up: blocks trimmed, tojson without HTML escapes."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def chat(environment: Environment, messages: list[dict[str, object]] | Dialogue, **options: object) -> str:
    config = json.loads((folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    return environment.from_string(config["chat_template"]).render(messages=messages, **options)


def test_entries(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == ENTRIES == 1024


@pytest.mark.parametrize("text", ["1234567890", "12 + 345 = 357", "-7", "x2y10"])
def test_every_digit_is_a_token(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text).tokens
    assert [token for token in tokens if any(map(str.isdigit, token))] == [c for c in text if c.isdigit()]


@pytest.mark.parametrize(
    "text", ["Hello there!", "日本語 ñ 🙂\n\ttab  two", '{"a": [1, 2.5]}', "<tool_call>\n{}\n</tool_call>"]
)
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_dialogues_round_trip(tokenizer: Tokenizer) -> None:
    for dialogue in islice(training_dialogues(9), 100):
        text = render(dialogue)
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_markers_are_one_token_and_only_chat_ones_are_special(tokenizer: Tokenizer) -> None:
    for token in SPECIAL + TAGS:
        assert len(tokenizer.encode(token).ids) == 1
    assert [tokenizer.decode(tokenizer.encode(token).ids) for token in SPECIAL] == [""] * 3
    assert [tokenizer.decode(tokenizer.encode(token).ids) for token in TAGS] == TAGS


def test_the_config_holds_the_committed_template() -> None:
    config = json.loads((folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == TEMPLATE.read_text(encoding="utf-8")
    assert (config["eos_token"], config["model_max_length"]) == ("<|im_end|>", 1024)


def test_the_template_writes_what_training_saw(environment: Environment) -> None:
    for dialogue in islice(training_dialogues(10), 200):
        assert chat(environment, dialogue) == render(dialogue)


def test_the_template_adds_no_system_message_of_its_own(environment: Environment) -> None:
    prompt = chat(environment, [{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_tools_field_reads_as_the_system_message_training_saw(environment: Environment) -> None:
    tools = list(load().tools.values())[:2]
    user = {"role": "user", "content": "Hi"}
    by_field = chat(environment, [user], tools=[tool.schema() for tool in tools])
    assert by_field == chat(environment, [{"role": "system", "content": tools_text(tools)}, user])
    with_system = chat(environment, [{"role": "system", "content": "S"}, user], tools=[tool.schema() for tool in tools])
    assert with_system == chat(environment, [{"role": "system", "content": "S\n\n" + tools_text(tools)}, user])


@pytest.mark.parametrize("arguments", [{"a": 1, "b": 2}, '{"a": 1, "b": 2}'])
def test_calls_and_results_of_the_api_read_as_text(environment: Environment, arguments: object) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "3"},
    ]
    assert chat(environment, messages) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    )


def test_the_folder_is_where_the_package_is() -> None:
    assert folder() == Path(__file__).parents[2] / "core" / "tessera" / "demo"
