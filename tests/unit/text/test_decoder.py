from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import ModelError
from tessera.text import Tokenizer, Vocabulary

BYTE_KINDS = ["byte_level", "byte_fallback", "byte_fallback_no_strip", "metaspace"]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_byte_vocabularies_decode_as_the_library_does(
    tokenizers_by_kind: dict[str, Tokenizer], data: st.DataObject
) -> None:
    """Wherever the bytes are UTF-8. Where they are not, the library counts replacement characters differently."""
    tokenizer = tokenizers_by_kind[data.draw(st.sampled_from(BYTE_KINDS))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    library = tokenizer.decode_plain(ids)
    if "\ufffd" not in library:
        assert tokenizer.decode(ids, skip_special_tokens=False) == library


# ---- decoders that are refused ------------------------------------------------------------------------------------


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def with_decoder(tokenizer: tokenizers.Tokenizer, decoder: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "decoder": decoder}))


@pytest.mark.parametrize(
    "decoder",
    [
        replace("x" * 17, String="a"),
        {"type": "Sequence", "decoders": [replace("aaa", String="a")] * 3},
        {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [replace("aaaa", String="a")] * 2}] * 2},
    ],
)
def test_decoder_that_grows_text_is_refused(trained: dict[str, tokenizers.Tokenizer], decoder: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"^tokenizer.json has a decoder that can make \d+ bytes of text") as caught:
        Vocabulary(with_decoder(trained["byte_level"], decoder))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "decoder",
    [
        replace("b", String=""),  # between any two characters
        replace("b", Regex="(a+)+$"),
        {"type": "Strip", "content": "a", "start": 0, "stop": 9},  # the library panics on a shorter token
    ],
)
def test_decoder_without_a_bound_is_refused(trained: dict[str, tokenizers.Tokenizer], decoder: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="has a decoder of type (Replace|Strip) that is refused"):
        Vocabulary(with_decoder(trained["byte_level"], decoder))


@pytest.mark.parametrize("decoder", [replace(" ", String="▁"), replace("▁▁", Regex="a")])
def test_decoder_with_a_bound_is_served(trained: dict[str, tokenizers.Tokenizer], decoder: dict[str, Any]) -> None:
    assert Vocabulary(with_decoder(trained["byte_level"], decoder)).vocab_size
