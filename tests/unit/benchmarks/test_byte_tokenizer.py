from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.byte_tokenizer import ids_of, link, names
from tokenizers import Tokenizer

SIZE = 300


def test_it_fills_the_vocabulary_and_its_text_can_be_read_as_ids(tmp_path: Path):
    model, copy = tmp_path / "model", tmp_path / "copy"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": SIZE}), encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"weights")
    link(model, copy)
    assert (copy / "model.safetensors").read_bytes() == b"weights"
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == len(names(SIZE)) == SIZE
    assert tokenizer.decode(tokenizer.encode("Grüße, 世界!\n").ids) == "Grüße, 世界!\n"
    assert ids_of(tokenizer.decode([260, 297, 256])) == [260, 297, 256]
    assert tokenizer.token_to_id("<end>") == SIZE - 1


def test_a_text_is_read_up_to_the_first_byte():
    assert ids_of("<260><261>x<262>") == [260, 261]


def test_a_model_keeps_its_own_tokenizer(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "tokenizer.json").write_text("its own", encoding="utf-8")
    link(model, tmp_path / "copy")
    assert (tmp_path / "copy" / "tokenizer.json").read_text(encoding="utf-8") == "its own"
