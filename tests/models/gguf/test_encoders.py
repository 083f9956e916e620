"""A text encoder from a GGUF file makes the vectors that transformers makes of the weights it was written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, NomicBertConfig, NomicBertModel

from tessera import LLM
from tessera.errors import ModelError
from tools.parity.modes import PLATFORMS

HIDDEN, HEADS, LAYERS, ROWS, POSITIONS = 36, 3, 2, 61, 50
TEXTS = [[3, 9, 27, 4], [7], [60, 0, 5, 5, 8, 1, 33]]


SIZES: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 52,
    "max_position_embeddings": POSITIONS,
    "layer_norm_eps": 1e-6,
    "initializer_range": 0.4,
}
KINDS = {"bert": (BertConfig, BertModel), "nomic-bert": (NomicBertConfig, NomicBertModel)}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config, kind = KINDS[request.param]
    return kind(config(**SIZES), add_pooling_layer=False).eval()


def write(model: Any, path: Path, pooling: int) -> Path:
    name = model.config.model_type.replace("_", "-")
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(model.config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    if name == "nomic-bert":
        writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    architecture = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    names = gguf.get_tensor_name_map(architecture, LAYERS)
    model.save_pretrained(path.parent / "published")  # under the names that converters know
    for key, value in load_file(path.parent / "published/model.safetensors").items():
        own = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert own is not None, key
        writer.add_tensor(own, np.ascontiguousarray(value.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("pooling", "name"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_vectors_are_pooled_as_the_file_says(model: Any, tmp_path: Path, pooling: int, name: str) -> None:
    path = write(model, tmp_path / "model.gguf", pooling)
    with LLM(str(path), skip_tokenizer_init=True, dtype="float32", platform=PLATFORMS["strict"]) as llm:
        vectors = [output.outputs.embedding for output in llm.embed([{"prompt_token_ids": ids} for ids in TEXTS])]
    for ids, vector in zip(TEXTS, vectors, strict=True):
        with torch.inference_mode():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[name]
        expected = torch.nn.functional.normalize(pooled, dim=0)
        torch.testing.assert_close(torch.tensor(vector), expected, rtol=0, atol=2e-6)


def test_another_way_of_pooling_is_refused_by_its_number(model: Any, tmp_path: Path) -> None:
    path = write(model, tmp_path / "model.gguf", 4)
    with pytest.raises(ModelError, match=r"bert.pooling_type of the GGUF file is 4; supported are 1 \(mean\)"):
        LLM(str(path), skip_tokenizer_init=True)
