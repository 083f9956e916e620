"""SentencePiece's vocabularies: BPE with scores or merges, and Unigram; and WordPiece."""

from __future__ import annotations

import base64
import json
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tessera.errors import ModelError
from tessera.gguf.tokenizer import tokenizer_config, tokenizer_json
from tessera.text import Tokenizer
from tests.unit.gguf.tokenizer_metadata import WORDS, converted, differences, random_texts

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ("<s>", "</s>", "<|user|>")
RUNS = ("▁▁", "▁▁▁", "▁▁▁▁")
USER_DEFINED = ("<table>", "\n\n")


def corpus() -> list[str]:
    texts = [*random_texts(300, seed=1), *[" ".join(WORDS)] * 20]
    return [text.replace("▁", " ").replace("   ", "  ") for text in texts]


def pieces_bpe(prefix: bool, runs: bool = False) -> tokenizers.Tokenizer:
    """As Llama 2 (prefix), or Gemma (runs of spaces that the vocabulary has by definition)."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    prepend = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    defined = [*USER_DEFINED, *RUNS] if runs else [*USER_DEFINED]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>", *SPECIAL, *defined, *BYTES],
        limit_alphabet=150,
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return as_sentencepiece(tokenizer, defined)


def as_sentencepiece(tokenizer: tokenizers.Tokenizer, defined: list[str]) -> tokenizers.Tokenizer:
    """Its bytes are ordinary tokens, and its merges are all that its vocabulary allows, in its order."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in BYTES]
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in defined
    vocabulary = state["model"]["vocab"]
    skipped = {"<unk>", *SPECIAL, *BYTES}
    merges = []
    for piece in sorted(vocabulary, key=vocabulary.__getitem__):
        made = [(piece[:at], piece[at:]) for at in range(1, len(piece))] if piece not in skipped else []
        made = [pair for pair in made if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += sorted(made, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    state["model"]["merges"] = merges
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def scored(tokenizer: tokenizers.Tokenizer, **keys: Any) -> dict[str, Any]:
    """As files of kind llama: scores that fall with the id; 0 for bytes, -1000 for added tokens."""
    metadata = converted(tokenizer, "llama", **keys)
    del metadata["tokenizer.ggml.merges"]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    for token_id, token in enumerate(tokens):
        types[token_id] = 2 if token == "<unk>" else 6 if token in BYTES else types[token_id]
    metadata["tokenizer.ggml.scores"] = [
        {1: -float(token_id), 6: 0.0}.get(kind, -1000.0) for token_id, kind in enumerate(types)
    ]
    return metadata


def read(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))


@pytest.fixture(scope="module")
def llama() -> tokenizers.Tokenizer:
    return pieces_bpe(prefix=True)


@pytest.fixture(scope="module")
def gemma() -> tokenizers.Tokenizer:
    return pieces_bpe(prefix=False, runs=True)


def test_scores_give_the_ids_of_the_models_merges(llama: tokenizers.Tokenizer) -> None:
    ours = read(scored(llama))
    assert differences(ours, llama, random_texts(2000, seed=2, extra=SPECIAL + USER_DEFINED)) == []
    assert ours.encode("hi").ids[0] == 1


def test_runs_of_spaces_that_a_vocabulary_defines(gemma: tokenizers.Tokenizer) -> None:
    metadata = scored(gemma, add_space_prefix=False)
    assert {"  ", "   ", "    "} < set(metadata["tokenizer.ggml.tokens"])
    ours = read(metadata)
    assert differences(ours, gemma, random_texts(2000, seed=3, extra=(*SPECIAL, *USER_DEFINED, "      x"))) == []
    assert "▁▁▁▁" in ours.encode("    x").tokens


def test_files_with_merges_have_the_models_ids(gemma: tokenizers.Tokenizer) -> None:
    metadata = converted(gemma, "gemma4", bos_token_id=1, unknown_token_id=0)
    ours = read(metadata)
    assert differences(ours, gemma, random_texts(500, seed=4, extra=SPECIAL + USER_DEFINED)) == []
    assert ours.encode("hi").ids[0] == 1
    chat = read(metadata | {"tokenizer.chat_template": "{{ bos_token }}", "tokenizer.ggml.add_bos_token": True})
    assert chat.encode("hi").ids == ours.encode("hi").ids[1:]


@pytest.mark.nightly
def test_ids_are_equal_on_a_hundred_thousand_texts(llama: tokenizers.Tokenizer, gemma: tokenizers.Tokenizer) -> None:
    texts = [*random_texts(100_000, seed=11, extra=SPECIAL + USER_DEFINED)]
    assert differences(read(scored(llama)), llama, iter(texts)) == []
    assert differences(read(scored(gemma, add_space_prefix=False)), gemma, iter(texts)) == []


def test_what_llama_files_leave_out(llama: tokenizers.Tokenizer, gemma: tokenizers.Tokenizer) -> None:
    """A space before each text and BOS, unless the file says otherwise."""
    plain = read(scored(llama))
    assert [token[:1] for token in plain.encode("the").tokens[:2]] == ["<", "▁"]
    assert plain.decode(plain.encode("the").ids) == "the"
    bare = read(scored(gemma, add_space_prefix=False, add_bos_token=False))
    assert bare.encode("the").tokens[0][:1] == "t"


def test_the_text_package_reads_them(tmp_path: Path, llama: tokenizers.Tokenizer) -> None:
    metadata = scored(llama)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(metadata))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(metadata)), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.pieces is not None
    text = "naïve 今日 😀\n\tx"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == llama.encode(text).ids


def test_special_tokens_of_phi_3_take_what_follows(llama: tokenizers.Tokenizer) -> None:
    phi = read(scored(llama) | {"general.architecture": "phi3"})
    assert phi.encode("<|user|>\n hi").ids == phi.encode("<|user|>hi").ids
    assert phi.encode("<s>\n hi").ids != phi.encode("<s>hi").ids
    assert read(scored(llama)).encode("<|user|>\n hi").ids != phi.encode("<|user|>\n hi").ids


def test_a_large_vocabulary_takes_no_long_time() -> None:
    chance = random.Random(7)
    pieces = {"▁"} | {chr(code) for code in range(0x21, 0x300)}
    letters = "▁abcdefghijklmnopqrstuvwxyzабвгдежзиклмнопрстуфхцч"
    while len(pieces) < 65_536:
        pieces.add("".join(chance.choice(letters) for _ in range(chance.randrange(2, 9))))
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *sorted(pieces, key=len)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(token_id) for token_id in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
    }
    begin = time.process_time()
    content = tokenizer_json(metadata)
    assert time.process_time() - begin < 15  # it takes 0.4 s; with the square of the vocabulary, minutes
    assert len(json.loads(content)["model"]["merges"]) > 10_000


# ---- Unigram -------------------------------------------------------------------------------------------------------


def charsmap(replacements: dict[bytes, bytes]) -> bytes:
    """SentencePiece's table for replacements of single bytes: a double array with one level below its root."""
    texts, offsets = b"", {}
    for content in replacements.values():
        offsets[content] = len(texts)
        texts += content + b"\0"
    units = [0] * 1024
    units[0] = 256 << 10  # the root's children are at 256 ^ byte
    for at, (byte, content) in enumerate(replacements.items()):
        (label,) = byte
        child, value = 256 ^ label, 512 + at
        units[child] = label | 1 << 8 | (child ^ value) << 10
        units[value] = 1 << 31 | offsets[content]
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


CHARSMAP = charsmap({b"\n": b" ", b"\t": b" ", b"Q": b"", b"A": b"alpha"})


@pytest.fixture(scope="module")
def unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(CHARSMAP)
    mark = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<pad>", "</s>", "<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<extra>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


@pytest.fixture
def unigram_metadata(unigram: tokenizers.Tokenizer) -> dict[str, Any]:
    metadata = converted(unigram, "t5", precompiled_charsmap=list(CHARSMAP), remove_extra_whitespaces=True)
    scores = [score for _, score in json.loads(unigram.to_str())["model"]["vocab"]]
    added = len(metadata["tokenizer.ggml.tokens"]) - len(scores)
    return metadata | {"tokenizer.ggml.scores": [*scores, *[-1000.0] * added]}


def test_unigram_has_the_models_ids(unigram: tokenizers.Tokenizer, unigram_metadata: dict[str, Any]) -> None:
    ours = read(unigram_metadata)
    assert differences(ours, unigram, random_texts(2000, seed=5, extra=("<extra>", "</s>", "AQA"))) == []
    assert ours.encode("AQ").tokens == unigram.encode("alpha").tokens
    assert ours.encode("hi").ids[-1] == 1


def test_bos_of_a_unigram_vocabulary(unigram_metadata: dict[str, Any]) -> None:
    ours = read(unigram_metadata | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 3})
    ids = ours.encode("hi").ids
    assert (ids[0], ids[-1]) == (3, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"\0",
        b"\0\0\0\0",
        struct.pack("<I", 400) + b"\0" * 8,
        CHARSMAP[:-1],
        CHARSMAP[:-1] + b"\xff",
        CHARSMAP + b"\xff\0",
    ],
)
def test_a_broken_table_of_replacements_is_refused(unigram_metadata: dict[str, Any], content: bytes) -> None:
    with pytest.raises(ModelError, match="precompiled_charsmap in the GGUF file is broken"):
        tokenizer_json(unigram_metadata | {"tokenizer.ggml.precompiled_charsmap": list(content)})


# ---- WordPiece -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece_has_the_models_ids(lowercase: bool) -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    theirs = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=names, show_progress=False)
    theirs.train_from_iterator(corpus(), trainer)
    theirs.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    metadata = converted(theirs, "bert", unknown_token_id=1, cls_token_id=2, seperator_token_id=3, mask_token_id=4)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    for token_id, token in enumerate(tokens):
        if types[token_id] == 1:
            tokens[token_id] = token.removeprefix("##") if token.startswith("##") else f"▁{token}"
    if not lowercase:
        metadata["tokenizer.ggml.normalizer.lowercase"] = False
    assert differences(read(metadata), theirs, random_texts(1500, seed=6, extra=("[MASK]", "[SEP]"))) == []
    config = tokenizer_config(metadata)
    assert (config["cls_token"], config["sep_token"], config["mask_token"]) == ("[CLS]", "[SEP]", "[MASK]")


def test_a_table_of_replacements_survives(unigram_metadata: dict[str, Any]) -> None:
    signed = [byte - 256 if byte > 127 else byte for byte in CHARSMAP]
    written = json.loads(tokenizer_json(unigram_metadata | {"tokenizer.ggml.precompiled_charsmap": signed}))
    assert base64.b64decode(written["normalizer"]["precompiled_charsmap"]) == CHARSMAP
