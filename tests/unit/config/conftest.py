"""Models' folders with what configuration reads, and no weights to speak of."""

from __future__ import annotations

import json

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
}
TOKENIZER = {"added_tokens": [{"id": 7, "content": "<|end|>", "special": True}], "model": {"vocab": {"a": 0}}}


@pytest.fixture
def folder(tmp_path):
    """Writes a model's folder; further files are given as name=content, None leaves one out."""

    def write(name="model", **files):
        path = tmp_path / name
        path.mkdir()
        contents = {
            "config.json": CONFIG,
            "tokenizer.json": TOKENIZER,
            "model.safetensors": "",
            **{key.replace("__", "."): value for key, value in files.items()},
        }
        for file, content in contents.items():
            if content is not None:
                (path / file).write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write
