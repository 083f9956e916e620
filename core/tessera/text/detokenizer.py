"""Turns token ids into text as they are generated.

If the vocabulary defines the bytes of each token, detokenizing means joining bytes and decoding UTF-8. For other
decoders, the last few tokens are decoded with and without the new ones.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tessera.text.decoder import BytePieces
from tessera.text.tokenizer import Vocabulary

# Earlier tokens decoded together with new ones: more than any character has, and a word's for other decoders.
_NUM_CONTEXT_TOKENS = 8
# A character has at most this many tokens. If text still ends in U+FFFD after that many, it is invalid.
_MAX_WITHHELD_TOKENS = 4


class IncrementalDetokenizer:
    """The text that tokens append to a prompt, in increments that add up to `Vocabulary.decode` of all tokens.

    prompt_ids: the prompt's last tokens, or all of them. They show whether the completion starts a text (SentencePiece
    then drops a space) or continues one, possibly in the middle of a character.
    spaces_between_special_tokens: if False, consecutive special tokens are joined even if the decoder separates them.
    kept: special tokens, by their text, that are not skipped.
    `append` takes time proportional to the new tokens, not to the text so far.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        kept_special_tokens: Sequence[str] = (),
    ) -> None:
        self._stream: _Stream
        skip = vocabulary.skipped_ids(skip_special_tokens, kept_special_tokens)
        if vocabulary.pieces is not None:
            self._stream = _ByteStream(vocabulary.pieces, prompt_ids, skip)
        else:
            self._stream = _WindowStream(vocabulary, prompt_ids, skip, spaces_between_special_tokens)

    def append(self, ids: Sequence[int]) -> str:
        """Returns the text that is now final, withholding what may be part of a character."""
        return self._stream.append(ids)

    def finish(self, *, cut: bool = False) -> str:
        """Returns the withheld text, with U+FFFD for an incomplete character at its end; without it if the text was
        cut, because more was to come. Nothing can be appended afterwards."""
        return self._stream.finish(cut=cut)


class _Stream(Protocol):
    def append(self, ids: Sequence[int]) -> str: ...

    def finish(self, *, cut: bool) -> str: ...


class _ByteStream:
    """For vocabularies whose tokens are bytes. The incremental UTF-8 decoder holds the state."""

    def __init__(self, pieces: BytePieces, prompt_ids: Sequence[int], skip: frozenset[int]) -> None:
        self._pieces = pieces
        self._skip = skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_past_start = not self._is_start(prompt_ids)
        self._utf8.decode(pieces.join(prompt_ids[-_NUM_CONTEXT_TOKENS:], skip))

    def append(self, ids: Sequence[int]) -> str:
        if self._is_past_start:
            return self._utf8.decode(self._pieces.join(ids, self._skip))
        joined, self._is_past_start = self._pieces.join_from_start(ids, self._skip)
        return self._utf8.decode(joined)

    def finish(self, *, cut: bool) -> str:
        return "" if cut else self._utf8.decode(b"", final=True)

    def _is_start(self, prompt_ids: Sequence[int]) -> bool:
        return not any(
            token_id not in self._skip and self._pieces.bytes_of(token_id) for token_id in reversed(prompt_ids)
        )


class _WindowStream:
    """For all other decoders: decodes the last few tokens with and without the new ones and returns the difference."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_ids: Sequence[int],
        skip: frozenset[int],
        spaces_between_special_tokens: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = skip
        self._parts_special = spaces_between_special_tokens
        self._context = self._without_skipped(prompt_ids)[-_NUM_CONTEXT_TOKENS:]
        self._withheld: list[int] = []

    def append(self, ids: Sequence[int]) -> str:
        kept = self._without_skipped(ids)
        if self._parts_special:
            return self._add(kept)
        return "".join(map(self._add_unparted, kept))

    def finish(self, *, cut: bool) -> str:
        text, self._withheld = self._new_text(), []
        return text.rstrip("\ufffd") if cut else text

    def _without_skipped(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in ids if token_id not in self._skip]

    def _add(self, ids: list[int]) -> str:
        self._withheld += ids
        text = self._new_text()
        if text.endswith("\ufffd") and len(self._withheld) < _MAX_WITHHELD_TOKENS:
            return ""
        self._context = (self._context + self._withheld)[-_NUM_CONTEXT_TOKENS:]
        self._withheld = []
        return text

    def _add_unparted(self, token_id: int) -> str:
        """Adds one token. A special token directly after another one adds its bare text."""
        added = self._vocabulary.added_token_texts
        if token_id in added and not self._withheld and self._context and self._context[-1] in added:
            self._context = [*self._context, token_id][-_NUM_CONTEXT_TOKENS:]
            return added[token_id]
        return self._add([token_id])

    def _new_text(self) -> str:
        decode = self._vocabulary.decode_plain
        return decode(self._context + self._withheld)[len(decode(self._context)) :]
