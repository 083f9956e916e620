"""The tokenizer that transformers makes of the same GGUF file.

Where it has a family's expressions, its ids are the models'. It has none for several families and no normalizers, and
puts no space after a token that it finds in a text, so the texts here have nothing of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from transformers import AutoTokenizer

from tessera.gguf.tokenizer import tokenizer_json
from tests.unit.gguf.test_tokenizer_byte_level import FAMILIES, trained
from tests.unit.gguf.test_tokenizer_sentencepiece import pieces_bpe, scored
from tests.unit.gguf.tokenizer_metadata import converted, differences, random_texts


def byte_level(name: str) -> dict[str, Any]:
    # transformers takes a control token only if GPT-2's alphabet can write it.
    metadata = converted(trained(*FAMILIES[name]), "gpt2", pre=name, add_bos_token=True, bos_token_id=0)
    metadata["tokenizer.ggml.tokens"][2] = "<|fill|>"
    return metadata


def llama() -> dict[str, Any]:
    return scored(pieces_bpe(prefix=True), add_bos_token=True, bos_token_id=1, eos_token_id=2, unknown_token_id=0)


def gemma() -> dict[str, Any]:
    metadata = scored(pieces_bpe(prefix=False, runs=True), add_space_prefix=False, bos_token_id=1, unknown_token_id=0)
    return metadata | {"general.architecture": "gemma3"}


CASES = {
    "llama-bpe": lambda: byte_level("llama-bpe"),
    "tekken": lambda: byte_level("tekken"),
    "gpt-4o": lambda: byte_level("gpt-4o"),
    "gpt-2": lambda: byte_level("gpt-2"),
    "llama": llama,
    "gemma3": gemma,
}


def written(metadata: dict[str, Any], path: Path) -> Path:
    """A GGUF file with these keys and no tensors, by llama.cpp's own writer."""
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str() if key != "general.architecture":
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain_texts() -> Iterator[str]:
    for text in random_texts(1000, seed=8):
        if text and not text[0].isspace() and "▁" not in text and "\n\n" not in text:
            yield text


@pytest.mark.parametrize("name", CASES)
def test_the_ids_of_transformers(tmp_path: Path, name: str) -> None:
    metadata = CASES[name]()
    path = written(metadata, tmp_path / "model.gguf")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name).backend_tokenizer
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))
    assert differences(ours, theirs, plain_texts()) == []
