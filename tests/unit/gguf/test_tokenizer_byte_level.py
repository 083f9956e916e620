"""Byte-level vocabularies: GPT-2's kind, with the splits of each family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tessera.errors import ModelError
from tessera.gguf.tokenizer import tokenizer_config, tokenizer_json
from tessera.text import Tokenizer
from tests.unit.gguf.tokenizer_metadata import WORDS, converted, differences, random_texts

SPECIAL = ("<|begin|>", "<|end|>", "<｜fill▁here｜>")
USER_DEFINED = ("<think>", "</think>")


def trained(
    parts: list[pre_tokenizers.PreTokenizer],
    normalizer: normalizers.Normalizer | None = None,
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """A vocabulary of a few hundred merges that cuts text as `parts` do."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [*random_texts(300, seed=1), *[" ".join(WORDS)] * 20, "\n".join(WORDS), "1234567890 " * 20]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in USER_DEFINED])
    return tokenizer


def isolated(*patterns: str) -> list[pre_tokenizers.PreTokenizer]:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def spaced() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


NFC = normalizers.NFC()
GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = GPT_4.replace("{1,3}", "")
MARKS = QWEN.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
HAN = O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IDEOGRAPHS = "[一-龥\u0800-一가-\ud7ff]+"
DIGITS = pre_tokenizers.Digits(individual_digits=True)

# By the name in the file: what the models' own tokenizer.json files have.
FAMILIES: dict[str, tuple[list[pre_tokenizers.PreTokenizer], normalizers.Normalizer | None, bool]] = {
    "llama-bpe": (isolated(GPT_4), None, True),
    "glm4": (isolated(GPT_4), None, True),
    "dbrx": (isolated(GPT_4), None, False),
    "qwen2": (isolated(QWEN), NFC, False),
    "qwen35": (isolated(MARKS), NFC, False),
    "gpt-2": ([spaced()], None, False),
    "olmo": ([spaced()], NFC, False),
    "smollm": ([DIGITS, spaced()], None, False),
    "command-r": ([DIGITS, spaced()], NFC, False),
    "falcon": (
        [
            pre_tokenizers.Punctuation("contiguous"),
            spaced(),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
        None,
        False,
    ),
    "tekken": (isolated(TEKKEN), None, True),
    "gpt-4o": (isolated(O200K), None, True),
    "tiny_aya": (isolated(r"\d{1,3}(?=(?:\d{3})*\b)", O200K), NFC, False),
    "deepseek-coder": (
        [*isolated(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS)[:-1], DIGITS, *isolated()],
        None,
        False,
    ),
    "deepseek-v3": (isolated(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK), None, False),
    "kimi-k2": (isolated(r"[\p{Han}]+|" + HAN), None, True),
    "bailingmoe": (
        isolated(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        None,
        False,
    ),
    "seed-coder": (
        isolated(
            QWEN.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+").replace(r"\p{N}|", r"\p{N}{1}|")
        ),
        None,
        False,
    ),
    "bloom": (isolated(r" ?[^(\s|[.,!?…。，、।۔،])]+"), None, False),
    "laguna": (
        [pre_tokenizers.Split(Regex(r"(?:\r?\n)+(?!\r?\n)"), "merged_with_next"), *isolated(QWEN)],
        None,
        False,
    ),
}


@pytest.fixture(scope="module")
def smollm() -> tokenizers.Tokenizer:
    return trained(*FAMILIES["smollm"])


@pytest.fixture
def metadata(smollm: tokenizers.Tokenizer) -> dict[str, Any]:
    return converted(smollm, "gpt2", pre="smollm", bos_token_id=0, eos_token_id=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_its_models_ids(name: str) -> None:
    theirs = trained(*FAMILIES[name])
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(converted(theirs, "gpt2", pre=name, add_bos_token=False)))
    assert differences(ours, theirs, random_texts(300, seed=2, extra=SPECIAL + USER_DEFINED)) == []


def test_ids_and_texts_are_equal_on_two_thousand_texts(smollm: tokenizers.Tokenizer, metadata: dict[str, Any]) -> None:
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))
    assert differences(ours, smollm, random_texts(2000, seed=3, extra=SPECIAL + USER_DEFINED)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "deepseek-v3", "falcon"])
def test_ids_are_equal_on_a_hundred_thousand_texts(name: str) -> None:
    theirs = trained(*FAMILIES[name])
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(converted(theirs, "gpt2", pre=name, add_bos_token=False)))
    assert differences(ours, theirs, random_texts(100_000, seed=11, extra=SPECIAL + USER_DEFINED)) == []


def test_the_families_cut_differently() -> None:
    """Otherwise equal ids would show nothing."""
    text = "Don't 12345 camelCase naïve cafe\u0301s 今日world हिन्दी\n\n  \tx \r\n\r\n'RE ५६७ 50% a/b//\n HTMLParser🙂"
    cuts = {}
    for name, (parts, normalizer, _) in FAMILIES.items():
        normal = text if normalizer is None else normalizer.normalize_str(text)
        cuts[name] = tuple(piece for piece, _ in pre_tokenizers.Sequence(parts).pre_tokenize_str(normal))
    same = {"glm4": "llama-bpe", "dbrx": "llama-bpe"}
    assert len({cut for name, cut in cuts.items() if name not in same}) == len(FAMILIES) - len(same)


@pytest.mark.parametrize(
    ("keys", "begin", "end"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [0], []),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
        ({"add_bos_token": False, "add_eos_token": True}, [], [1]),
        ({"pre": "llama-bpe"}, [0], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"pre": "tekken", "bos_token_id": 2**32 - 1}, [], []),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(
    metadata: dict[str, Any], keys: dict[str, Any], begin: list[int], end: list[int]
) -> None:
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))
    inner = ours.encode("some text", add_special_tokens=False).ids
    assert ours.encode("some text").ids == [*begin, *inner, *end]
    if begin or end:
        theirs = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))
        template = (["<|begin|>"] if begin else []) + ["$A"] + (["<|end|>"] if end else [])
        theirs.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<|begin|>", 0), ("<|end|>", 1)]
        )
        assert ours.encode("some text").ids == theirs.encode("some text").ids


def test_control_tokens_are_special_and_user_defined_ones_are_not(metadata: dict[str, Any]) -> None:
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata))
    ids = ours.encode("<think>a</think><｜fill▁here｜><|end|>").ids
    assert ours.decode(ids) == "<think>a</think>"
    assert ours.decode(ids, skip_special_tokens=False) == "<think>a</think><｜fill▁here｜><|end|>"


def test_the_text_package_reads_it(tmp_path: Path, metadata: dict[str, Any], smollm: tokenizers.Tokenizer) -> None:
    metadata |= {"tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.padding_token_id": 1}
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(metadata))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(metadata)), encoding="utf-8")
    read = Tokenizer.from_folder(tmp_path)
    assert read.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    assert read.chat_templates == {"default": "{{ messages }}"}
    assert read.special_ids == {0, 1, 2}
    assert read.pieces is not None
    text = "naïve 今日 😀\n\tx"
    assert read.encode(text) == smollm.encode(text).ids
    assert read.decode(read.encode(text)) == text


def test_the_mask_token_of_jina_takes_the_spaces_before_it(metadata: dict[str, Any]) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[2] = "<mask>"
    plain = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata | {"tokenizer.ggml.pre": "gpt-2"}))
    jina = tokenizers.Tokenizer.from_buffer(tokenizer_json(metadata | {"tokenizer.ggml.pre": "jina-v2-es"}))
    assert jina.encode("a  <mask> b").ids == plain.encode("a<mask> b").ids != plain.encode("a  <mask> b").ids


def test_a_ranked_vocabulary_needs_no_merges(metadata: dict[str, Any]) -> None:
    """Its ranks are its ids: of two pairs the one whose token has the lower id is merged first."""
    ranked = metadata | {"tokenizer.ggml.pre": "kimi-k2"}
    del ranked["tokenizer.ggml.merges"]
    ranked["tokenizer.ggml.tokens"] = ["a", "b", "c", "d", "bc", "ab", "abc", "bcd"]
    ranked["tokenizer.ggml.token_type"] = [1] * 8
    ours = tokenizers.Tokenizer.from_buffer(tokenizer_json(ranked))
    assert [ours.encode(text).tokens for text in ("abc", "ab", "bcd", "abd")] == [["abc"], ["ab"], ["bcd"], ["ab", "d"]]
    assert ours.encode("dabcd").tokens == ["d", "abc", "d"]  # bc first, then a goes with it before d can


def test_a_tokenizer_that_is_not_known_is_refused_by_name(metadata: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"splits text as 'llama-9'.*--tokenizer FOLDER"):
        tokenizer_json(metadata | {"tokenizer.ggml.pre": "llama-9"})
    with pytest.raises(ModelError, match=r"pre is missing.*--tokenizer FOLDER"):
        tokenizer_json({key: value for key, value in metadata.items() if not key.endswith(".pre")})
    with pytest.raises(ModelError, match=r"kind 'rwkv'.*--tokenizer FOLDER"):
        tokenizer_json(metadata | {"tokenizer.ggml.model": "rwkv"})
