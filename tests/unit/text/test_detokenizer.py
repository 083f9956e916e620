from __future__ import annotations

import time
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from tessera.text import IncrementalDetokenizer, Tokenizer

TEXTS = ["Hello world!", "naïve café 😀👍🏽 한국어", "a\n\n  b", "", "今日は世界。", " leading", "Cafe\u0301"]


def in_chunks(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    return [ids[start:end] for start, end in pairwise(edges)] or [[]]


def increments(tokenizer: Tokenizer, prompt: list[int], chunks: list[list[int]], skip: bool = True) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*map(stream.append, chunks), stream.finish()]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_increments_join_to_the_text_of_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    some_id = st.integers(0, tokenizer.vocab_size + 3)  # a model has rows for more ids than the tokenizer
    ids = data.draw(st.lists(some_id, max_size=40))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=40))
    skip = data.draw(st.booleans())
    assert "".join(increments(tokenizer, [], in_chunks(ids, cuts), skip)) == tokenizer.decode(ids, skip)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_increments_after_a_prompt_are_what_the_whole_adds_to_it(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prompt = tokenizer.encode(data.draw(st.sampled_from([text for text in TEXTS if text])))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=30))
    text = "".join(increments(tokenizer, prompt, in_chunks(ids, cuts)))
    assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + ids)


def test_text_comes_back_one_token_at_a_time(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for kind in ("byte_level", "byte_fallback", "byte_fallback_no_strip"):
        for text in TEXTS:
            tokenizer = tokenizers_by_kind[kind]
            ids = tokenizer.encode(text)
            pieces = increments(tokenizer, [], [[token_id] for token_id in ids])
            # Gemma's decoder keeps the space that this normalizer puts before a text.
            expected = f" {text}" if kind == "byte_fallback_no_strip" and text else text
            assert "".join(pieces) == expected
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_part_of_a_character_is_withheld_and_flushed_as_replacement(
    tokenizers_by_kind: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    emoji = [by_bytes[bytes([byte])] for byte in "🦜".encode()]
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("x"))
    assert [stream.append([token_id]) for token_id in emoji] == ["", "", "", "🦜"]
    assert stream.append(emoji[:2]) == ""
    assert stream.finish() == "\ufffd"
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("x"))
    assert stream.append([*tokenizer.encode("x")[-1:], *emoji[:3]]) + stream.finish(cut=True) == "x"


def test_prompt_that_ends_inside_a_character(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    emoji = [by_bytes[bytes([byte])] for byte in "🦜".encode()]
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("look: ") + emoji[:3])
    assert stream.append(emoji[3:]) == "🦜"


def test_leading_space_is_dropped_at_the_start_of_a_text_only(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_fallback"]
    bos = tokenizer.bos_token_id
    assert bos is not None
    ids = tokenizer.encode("the dog")
    assert "".join(increments(tokenizer, [bos], [ids])) == "the dog"
    assert "".join(increments(tokenizer, [bos, *tokenizer.encode("Hello")], [ids])) == " the dog"
    # A skipped token leaves no text, so the start is still ahead after it.
    assert "".join(increments(tokenizer, [], [[bos], ids])) == "the dog"


def test_added_token_outside_the_byte_alphabet_is_itself(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = tokenizer.encode("a two words b")
    assert "two words" in [tokenizer.token(token_id) for token_id in ids]
    assert "".join(increments(tokenizer, [], [ids])) == "a two words b"


def test_special_tokens_shown_or_skipped(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = tokenizer.encode("<|im_start|>Hello<|im_end|><tool>")
    assert "".join(increments(tokenizer, [], [ids])) == "Hello<tool>"
    assert "".join(increments(tokenizer, [], [ids], skip=False)) == "<|im_start|>Hello<|im_end|><tool>"


@pytest.mark.parametrize(("parted", "expected"), [(True, "dog <s> </s> dog"), (False, "dog <s></s> dog")])
def test_spaces_between_special_tokens(tokenizers_by_kind: dict[str, Tokenizer], parted: bool, expected: str) -> None:
    tokenizer = tokenizers_by_kind["word_piece"]
    stream = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=False, spaces_between_special_tokens=parted)
    ids = tokenizer.encode("dog <s></s> dog")
    assert "".join(stream.append([token_id]) for token_id in ids) + stream.finish() == expected


def test_unusual_decoder_withholds_a_character_and_gives_up_on_garbage() -> None:
    vocabulary = {"a": 0, "<0xF0>": 1, "<0x9F>": 2, "<0x98>": 3, "<0x80>": 4}
    plain = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    plain.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(plain)
    assert tokenizer.pieces is None
    stream = IncrementalDetokenizer(tokenizer, [0])
    assert [stream.append([token_id]) for token_id in (1, 2, 3, 4, 0)] == ["", "", "", "😀", "a"]
    # Four bytes that begin no character: given out, not withheld for ever.
    assert "".join(stream.append([4]) for _ in range(4)) == "\ufffd" * 4


@pytest.mark.parametrize("kind", ["byte_level", "word_piece"])
def test_time_a_token_does_not_grow_with_the_text(tokenizers_by_kind: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers_by_kind[kind]
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("the dog"))
    ids = tokenizer.encode("the quick brown fox ") * 25

    def seconds_for_all() -> float:
        start = time.process_time()
        for token_id in ids:
            stream.append([token_id])
        return time.process_time() - start

    first = min(seconds_for_all() for _ in range(3))
    stream.append(ids * 60)
    assert min(seconds_for_all() for _ in range(3)) < 5 * first
