"""The bundled model's files agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tessera.demo import folder
from tools.demo_model.model import Decoder, Shape
from tools.demo_model.shuffle import shuffle


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return load_file(folder() / "model.safetensors")


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return json.loads((folder() / "config.json").read_text(encoding="utf-8"))


def test_the_weights_have_the_shapes_of_the_config(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    shape = Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        context=config["max_position_embeddings"],
    )
    expected = Decoder(shape).llama_state()
    assert {name: part.shape for name, part in weights.items()} == {name: part.shape for name, part in expected.items()}
    assert {part.dtype for part in weights.values()} == {torch.bfloat16}
    assert sum(part.numel() for part in weights.values()) == 2_558_400


def test_the_configs_agree_with_the_tokenizer(config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder() / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    generation = json.loads((folder() / "generation_config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == 1024
    assert config["max_position_embeddings"] == 1024
    assert config["eos_token_id"] == ids["<|im_end|>"]
    assert generation["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in folder().iterdir() if file.is_file()) <= 6_000_000


def test_a_shuffled_copy_has_the_same_entries_elsewhere(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    shuffle(folder(), tmp_path)
    copy = load_file(tmp_path / "model.safetensors")
    for name, tensor in weights.items():
        assert torch.equal(copy[name].flatten().sort().values, tensor.flatten().sort().values)
        assert torch.equal(copy[name], tensor) == (tensor.ndim == 1)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder() / "tokenizer.json").read_bytes()
