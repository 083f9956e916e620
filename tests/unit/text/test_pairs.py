"""Pairs of texts, and texts that are cut, by the tokenizer and by way of the text workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tessera.errors import RequestError
from tessera.text import Tokenizer
from tessera.text.job_packing import LONG_JOB
from tessera.text.tokenizer import EncodedPair
from tessera.text.worker import Start
from tessera.text.workers import TextWorkers
from tessera.text_pair import TextPair, type_columns

LETTERS = "abcdefgh"
FIRST, SECOND = 10, 11  # what stands at the ends of texts


def template(kind: str) -> processors.PostProcessor:
    pairs = {"types": "<s>:0 $A:0 </s>:0 $B:1 </s>:1", "one type": "<s> $A </s> </s> $B </s>"}
    special = [("<s>", FIRST), ("</s>", SECOND)]
    return processors.TemplateProcessing(single="<s> $A </s>", pair=pairs[kind], special_tokens=special)


def library(kind: str = "types") -> tokenizers.Tokenizer:
    """A token a letter."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)} | {"<s>": FIRST, "</s>": SECOND}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = template(kind)
    return tokenizer


def test_a_pair_is_joined_by_the_tokenizer_s_template() -> None:
    pair = TextPair("ab", "cde")
    typed, untyped = (Tokenizer(library(kind)).encode_pair(pair) for kind in ("types", "one type"))
    assert typed == EncodedPair([FIRST, 0, 1, SECOND, 2, 3, 4, SECOND], 4)
    assert untyped == EncodedPair([FIRST, 0, 1, SECOND, SECOND, 2, 3, 4, SECOND], 9)


@pytest.mark.parametrize(("side", "kept"), [("right", [0, 1, 2]), ("left", [5, 6, 7])])
def test_what_is_put_around_a_text_stays_when_it_is_cut(side: str, kept: list[int]) -> None:
    tokenizer = Tokenizer(library())
    assert tokenizer.encode(LETTERS, max_tokens=5, truncation_side=side) == [FIRST, *kept, SECOND]
    assert tokenizer.encode("ab", max_tokens=5, truncation_side=side) == [FIRST, 0, 1, SECOND]
    assert len(tokenizer.encode(LETTERS)) == len(LETTERS) + 2  # the next text is whole


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    tokenizer = Tokenizer(library())
    for pair in (TextPair("ab", LETTERS), TextPair(LETTERS, "ab")):
        ids, boundary = tokenizer.encode_pair(pair, max_tokens=8, truncation_side="right")
        assert ids[:boundary] == [FIRST, *([0, 1] if pair.first == "ab" else [0, 1, 2]), SECOND]
        assert len(ids) == 8


def test_the_column_is_for_models_with_types() -> None:
    assert type_columns({"type_vocab_size": 2}, 5) == {"type_boundary": 5.0}
    for checkpoint in ({}, {"type_vocab_size": 1}, {"type_vocab_size": 0}, {"type_vocab_size": "2"}):
        assert type_columns(checkpoint, 5) == {}
    assert type_columns({"type_vocab_size": 2}, None) == {}


async def test_workers_name_the_text_at_fault(tmp_path: Path) -> None:
    """Also one that is not in the first of the jobs that many texts become."""
    library().save(str(tmp_path / "tokenizer.json"))
    tokenizer, many = Tokenizer(library()), ["abc" * 1000] * (LONG_JOB // 1000)
    async with TextWorkers(Start(str(tmp_path))) as workers:
        assert await workers.encode(many, numbered=True) == [tokenizer.encode(text) for text in many]
        pairs = [TextPair("ab", text) for text in many]
        assert await workers.encode_pairs(pairs) == [tokenizer.encode_pair(pair) for pair in pairs]
        cut = await workers.encode_pairs(pairs, max_tokens=9, truncation_side="left")
        assert {len(pair.ids) for pair in cut} == {9}
        place = len(many) - 2
        many[place] = "abc" * 2000
        for found in (
            workers.encode(many, max_tokens=3002, numbered=True),
            workers.encode_pairs([TextPair("a", text) for text in many], max_tokens=3005, numbered=True),
        ):
            with pytest.raises(RequestError) as wrong:
                await found
            assert (wrong.value.param, wrong.value.code) == (f"prompt[{place}]", "context_length_exceeded")
