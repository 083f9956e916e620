"""spaces_between_special_tokens, beside what transformers decodes."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tessera.text import IncrementalDetokenizer, Tokenizer
from tests.unit.text.conftest import byte_fallback, byte_level

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def word_level() -> tokenizers.Tokenizer:
    """As BERT's family: a decoder that puts a space between tokens."""
    words = ["[UNK]", "hello", "world", "##ly", *SPECIAL]
    model = models.WordPiece(vocab={word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "word_level": word_level}


def text_of(tokenizer: Tokenizer, ids: list[int], skip: bool, spaces: bool) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip, spaces)
    return "".join([detokenizer.append((token,)) for token in ids]) + detokenizer.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_it_is_what_transformers_decodes(kind: str, skip: bool) -> None:
    raw = KINDS[kind]()
    theirs = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False)
    special = [raw.token_to_id(name) for name in SPECIAL]
    words = raw.encode("hello world", add_special_tokens=False).ids
    ids = [special[0], *words, special[3], special[2], special[1], *words, special[1]]
    mine = text_of(Tokenizer(raw), ids, skip, spaces=True)
    assert mine == theirs.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=True)


@pytest.mark.parametrize(
    ("spaces", "text"), [(True, "<s> </s> hello <s> <|im_end|> world"), (False, "<s></s> hello <s><|im_end|> world")]
)
def test_without_spaces_special_tokens_that_follow_each_other_touch(spaces: bool, text: str) -> None:
    raw = word_level()
    ids = [raw.token_to_id(word) for word in ("<s>", "</s>", "hello", "<s>", "<|im_end|>", "world")]
    assert text_of(Tokenizer(raw), ids, skip=False, spaces=spaces) == text
