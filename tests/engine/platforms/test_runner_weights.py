"""Weights of core's model for a platform's own runner: moved once, and looked up at each call."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tessera.config import build_config
from tessera.layers.build import TENSOR_GROUP
from tessera.platform import Alone
from tessera.reference.attention import ReferenceAttention
from tessera.runner.services import Services
from tessera.testing import ReferencePlatform
from tests.platforms.tiny_models import save_family


def services_of(folder: Path, **flags: object) -> Services:
    platform = "tessera.testing:ReferencePlatform"
    config = build_config(model=str(folder), platform=platform, skip_tokenizer_init=True, dtype="float32", **flags)
    return Services(config, [ReferencePlatform().open(0)], {TENSOR_GROUP: Alone()}, ReferencePlatform())


def test_each_tensor_is_placed_once_by_its_name(tmp_path: Path) -> None:
    services = services_of(save_family("llama", tmp_path, tie_word_embeddings=True))
    services.build_model(services.reference(), [ReferenceAttention()])
    calls: list[tuple[str, str]] = []

    def place(layer: str, part: str, tensor: Tensor) -> Tensor:
        calls.append((layer, part))
        return tensor.clone()

    weights = services.load_weights(place)
    assert len(calls) == len(set(calls)) == len({id(tensor) for weight in weights for tensor in weight.values()})
    assert calls.count(("model.embed_tokens", "weight")) == 1, "the head shares it"
    assert ("model.layers.0.self_attn.q_proj", "weight") in calls, "of joined layers, the first"


def test_the_model_computes_with_what_the_mappings_hold(tmp_path: Path) -> None:
    services = services_of(save_family("llama", tmp_path))
    model = services.build_model(services.reference(), [ReferenceAttention()])
    weights = services.load_weights(lambda layer, part, tensor: tensor)
    rows = torch.ones(2, model.facts.hidden_size)
    before = model.logits(rows)
    for weight in weights:
        weight["weight"] = weight["weight"] * 2
    torch.testing.assert_close(model.logits(rows), before * 2)


def test_a_model_is_quantized_as_asked(tmp_path: Path) -> None:
    services = services_of(save_family("llama", tmp_path), quantization="int8")
    services.build_model(services.reference(), [ReferenceAttention()])
    parts: set[tuple[str, torch.dtype]] = set()

    def place(layer: str, part: str, tensor: Tensor) -> Tensor:
        parts.add((part, tensor.dtype))
        return tensor

    services.load_weights(place)
    assert {("weight", torch.int8), ("scale", torch.float32)} <= parts
