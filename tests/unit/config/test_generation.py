"""Sampling defaults: the model's generation_config.json, another's, none, and what overrides them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.config.generation import sampling_defaults
from tessera.errors import ConfigError, ModelError
from tests.unit.config.test_build import build

WHOLE = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 64,
    "eos_token_id": [5, 6],
    "do_sample": True,
    "transformers_version": "5",
}
READ = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_tokens": 64,
}


def test_every_field_is_read(folder):
    assert build(folder(generation_config__json=WHOLE)).model.sampling_defaults == READ
    assert build(folder("other")).model.sampling_defaults == {}


@pytest.mark.parametrize("source", ["none", "vllm"])
def test_none_leaves_the_defaults_out_and_the_ends_in(folder, source):
    model = build(folder(generation_config__json=WHOLE), generation_config=source).model
    assert (model.sampling_defaults, model.eos_token_ids) == ({}, (5, 6))


def test_another_folders(folder, tmp_path):
    other = tmp_path / "recommended"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps({"temperature": 0.1, "eos_token_id": 9}))
    model = build(folder(generation_config__json=WHOLE), generation_config=str(other)).model
    assert (model.sampling_defaults, model.eos_token_ids) == ({"temperature": 0.1}, (9,))
    with pytest.raises(ConfigError, match="auto, none or a folder with generation_config.json"):
        build(folder("third"), generation_config="automatic")


@pytest.mark.parametrize(
    "given", ['{"temperature": 0.2, "max_new_tokens": 5}', {"temperature": 0.2, "max_new_tokens": 5}]
)
def test_what_overrides(folder, given):
    path = folder(generation_config__json=WHOLE)
    expected = {"temperature": 0.2, "max_tokens": 5}
    assert build(path, override_generation_config=given).model.sampling_defaults == READ | expected
    assert build(path, generation_config="none", override_generation_config=given).model.sampling_defaults == expected


@pytest.mark.parametrize(
    "given", ["{", "[]", "5", '{"temprature": 1}', '{"top_k": 1.5}', '{"top_p": 0}', '{"temperature": "hot"}']
)
def test_a_bad_override_is_refused(folder, given):
    with pytest.raises(ConfigError, match="override_generation_config"):
        build(folder(), override_generation_config=given)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 2}, {"top_k": -2}, {"min_p": True}, {"repetition_penalty": 0}]
)
def test_a_bad_file_is_refused(folder, wrong: dict[str, Any]):
    (name,) = wrong
    with pytest.raises(ModelError, match=rf"{name} in '.*generation_config.json'"):
        sampling_defaults(folder(generation_config__json=wrong))
