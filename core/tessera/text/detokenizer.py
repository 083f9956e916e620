"""Token ids to text, all at once or while they are generated.

Text is bytes, and the two usual kinds of vocabulary say which bytes a token stands for: byte-level (GPT-2's alphabet of
printable stand-ins for bytes) and metaspace (SentencePiece: `▁` for a space, with `<0x0A>` for a byte that has no
piece). Then detokenizing is joining bytes and decoding UTF-8, one token at a time as well as all at once. For any other
decoder the last few tokens are decoded with and without the new ones.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import tokenizers

if TYPE_CHECKING:
    from tessera.text.tokenizer import Vocabulary

# What happens to the space that SentencePiece puts before the first word of a text.
StartRule = Literal["keep", "strip_one_space", "drop_first_marks"]

_METASPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Tokens before the next ones that are decoded with them: more than one character's, and a word's for other decoders.
_NUM_CONTEXT_TOKENS = 8
# A character has at most this many tokens; text that still ends in U+FFFD after as many will not be mended.
_MAX_WITHHELD_TOKENS = 4


class BytePieces:
    """Token ids to bytes. `skip` in the methods: ids that leave no text."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, decoder: _DecoderFacts) -> None:
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> BytePieces | None:
        """None where the tokenizer's decoder is of another kind (WordPiece, CTC, an unknown chain)."""
        facts = _DecoderFacts.of(tokenizer)
        return None if facts is None else cls(tokenizer, facts)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token, its leading space included; none for an id outside the vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = self._known[token_id] = b"" if piece is None else self._decoder.bytes_of(piece)
        return known

    def join(self, token_ids: Iterable[int], skip: frozenset[int]) -> bytes:
        """The bytes of tokens in the middle of a text."""
        return b"".join([self.bytes_of(token_id) for token_id in token_ids if token_id not in skip])

    def join_from_start(self, token_ids: Iterable[int], skip: frozenset[int]) -> tuple[bytes, bool]:
        """The bytes of tokens at the start of a text, and whether the start is now behind (the rule is used up)."""
        kept = [token_id for token_id in token_ids if token_id not in skip]
        if not kept or self._decoder.start == "keep":
            return self.join(kept, skip), bool(kept)
        if self._decoder.start == "drop_first_marks":
            first = self.bytes_of(kept[0]).replace(b" ", b"")
            return first + self.join(kept[1:], skip), True
        joined = self.join(kept, skip)
        return joined.removeprefix(b" "), bool(joined)


class _DecoderFacts:
    """What the decoder in tokenizer.json does to each piece and to the start of a text."""

    def __init__(self, alphabet: dict[str, int] | None, has_byte_pieces: bool, start: StartRule) -> None:
        self._alphabet = alphabet
        self._has_byte_pieces = has_byte_pieces
        self.start: StartRule = start

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> _DecoderFacts | None:
        if tokenizer.decoder is None:
            return None
        decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = [step["type"] for step in steps]
        if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]:
            return cls(_byte_alphabet(), has_byte_pieces=False, start="keep")
        if kinds == ["Metaspace"] and steps[0]["replacement"] == _METASPACE:
            start: StartRule = "keep" if steps[0].get("prepend_scheme") == "never" else "drop_first_marks"
            return cls(None, has_byte_pieces=False, start=start)
        if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_metaspace_replace(steps[0]):
            if kinds[3:] == []:
                return cls(None, has_byte_pieces=True, start="keep")
            if kinds[3:] == ["Strip"] and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) == (" ", 1, 0):
                return cls(None, has_byte_pieces=True, start="strip_one_space")
        return None

    def bytes_of(self, piece: str) -> bytes:
        if self._alphabet is not None:
            # A piece with a character outside the alphabet, as added tokens may have, stands for itself.
            numbers = [self._alphabet.get(character, -1) for character in piece]
            return piece.encode() if -1 in numbers else bytes(numbers)
        if self._has_byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        return piece.replace(_METASPACE, " ").encode()


def _is_metaspace_replace(step: dict[str, Any]) -> bool:
    return (step["pattern"], step["content"]) == ({"String": _METASPACE}, " ")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for the characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + order): byte for order, byte in enumerate(others)}


class IncrementalDetokenizer:
    """The text that tokens add to a prompt, in increments that join to what `Vocabulary.decode` makes of the whole.

    prompt_ids: the prompt's last tokens, or all of them; they say whether the answer begins a text (SentencePiece then
    drops a space) or goes on in one, perhaps in the middle of a character.
    spaces_between_special_tokens: False joins special tokens that follow each other, where the decoder would part them.
    `append` takes time in proportion to the new tokens, not to the text so far.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._stream: _Stream
        skip = vocabulary.skipped_ids(skip_special_tokens)
        if vocabulary.pieces is not None:
            self._stream = _ByteStream(vocabulary.pieces, prompt_ids, skip)
        else:
            self._stream = _WindowStream(vocabulary, prompt_ids, skip, spaces_between_special_tokens)

    def append(self, ids: Sequence[int]) -> str:
        """The text that is now final. What may be part of a character is withheld."""
        return self._stream.append(ids)

    def finish(self) -> str:
        """What was withheld, U+FFFD for what is not a whole character. Nothing can be appended after."""
        return self._stream.finish()


class _Stream(Protocol):
    def append(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class _ByteStream:
    """For vocabularies whose tokens are bytes: an incremental UTF-8 decoder holds all the state there is."""

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

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _is_start(self, prompt_ids: Sequence[int]) -> bool:
        return not any(
            token_id not in self._skip and self._pieces.bytes_of(token_id) for token_id in reversed(prompt_ids)
        )


class _WindowStream:
    """For all other decoders: decode the last few tokens with and without the new ones; the difference is new."""

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
        self._context = self._kept(prompt_ids)[-_NUM_CONTEXT_TOKENS:]
        self._withheld: list[int] = []

    def append(self, ids: Sequence[int]) -> str:
        kept = self._kept(ids)
        if self._parts_special:
            return self._add(kept)
        return "".join(map(self._add_unparted, kept))

    def finish(self) -> str:
        text, self._withheld = self._new_text(), []
        return text

    def _kept(self, ids: Sequence[int]) -> list[int]:
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
        """One token. A special token right after another is its bare text."""
        added = self._vocabulary.added_token_texts
        if token_id in added and not self._withheld and self._context and self._context[-1] in added:
            self._context = [*self._context, token_id][-_NUM_CONTEXT_TOKENS:]
            return added[token_id]
        return self._add([token_id])

    def _new_text(self) -> str:
        decode = self._vocabulary.decode_plain
        return decode(self._context + self._withheld)[len(decode(self._context)) :]
