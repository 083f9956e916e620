"""Tokenizers of the usual kinds, trained on a few lines of many scripts."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tessera.text import Tokenizer

SAMPLE = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind. Hello world! Don't panic.",
    "Zażółć gęślą jaźń. Größe, naïve façade, señor. Cafe\u0301 und Ko\u0308ln mit kombinierenden Zeichen.",
    "今日は世界。你好，世界！我们在这里。한국어 문장입니다. Привет, мир! مرحبا بالعالم. नमस्ते दुनिया",
    "emoji: 😀 👩\u200d👩\u200d👧 🇫🇷 👍🏽 … “quotes” — dashes\n\n\tdef f(x):\n        return x ** 2  # code",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
OFTEN = 40
"""Times that a word of its own must come to be one piece, however a trainer breaks ties among what is rarer."""


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3, Qwen: every byte has a token."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SAMPLE, *[" the"] * OFTEN], trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False), "two words"])
    return tokenizer


def byte_fallback(strip: bool = True) -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral (strip), or Gemma: pieces with a metaspace, and bytes for what has no piece."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    special = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, limit_alphabet=60, max_token_length=12, show_progress=False
    )
    tokenizer.train_from_iterator([*SAMPLE, *["the"] * OFTEN], trainer)
    return _with_ordinary_bytes(tokenizer)


def _with_ordinary_bytes(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A trainer knows byte tokens as special ones only; in real models they are ordinary."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def metaspace() -> tokenizers.Tokenizer:
    """As T5: a Unigram model with the Metaspace decoder."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """As BERT: a decoder that is not a matter of bytes."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


def with_bos(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def copy_of(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())


BUILDERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_no_strip": lambda: byte_fallback(strip=False),
    "metaspace": metaspace,
    "word_piece": word_piece,
}


@pytest.fixture(scope="session")
def trained() -> dict[str, tokenizers.Tokenizer]:
    """By kind; a test that changes one takes a copy. Training breaks ties anew each time, so it happens once."""
    return {kind: build() for kind, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def tokenizers_by_kind(trained: dict[str, tokenizers.Tokenizer]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer(tokenizer, NAMES) for kind, tokenizer in trained.items()}


@pytest.fixture(scope="session", params=list(BUILDERS))
def tokenizer(request: pytest.FixtureRequest, tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_kind[request.param]
