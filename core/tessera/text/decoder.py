"""The decoder that tokenizer.json describes: whether it is safe to run, and the bytes of each token.

Two common kinds of vocabulary define the bytes of every token: byte-level (GPT-2's alphabet of printable stand-ins for
bytes) and metaspace (SentencePiece: `▁` for a space, and `<0x0A>` for a byte without a piece). With these, detokenizing
means joining bytes and decoding UTF-8, whether one token at a time or all at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import tokenizers

from tessera.errors import ModelError

# What to do with the space that SentencePiece puts before the first word of a text.
StartRule = Literal["keep", "strip_one_space", "drop_first_marks"]

_METASPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# The most bytes of text that a decoder may make of one byte of a token.
_MAX_GROWTH = 16.0
_REGEX_SYNTAX = frozenset("\\^$.|?*+()[]{}")


def check_decoder(tokenizer: tokenizers.Tokenizer) -> None:
    """Raises ModelError for a decoder whose output or running time is unbounded, or that may panic.

    Completions are detokenized token by token in the serving process, where nothing could stop a decoder. Each step of
    a decoder multiplies the size of its input by at most some factor; the product of the factors may not exceed
    _MAX_GROWTH. No factor is known for step types not listed here, for replacing an empty string (it matches between
    any two characters) and for regular expressions, which may also take exponential time.
    """
    if tokenizer.decoder is None:
        return
    growth = 1.0
    for step in _steps(json.loads(tokenizer.decoder.__getstate__())):
        growth *= _growth(step)
    if growth > _MAX_GROWTH:
        raise ModelError(
            f"tokenizer.json has a decoder that can make {growth:.0f} bytes of text of each byte of a token; at most "
            f"{_MAX_GROWTH:.0f} are allowed."
        )


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _steps(step)


def _growth(step: Mapping[str, Any]) -> float:
    """The most bytes that a decoder step makes of one byte. Raises ModelError."""
    kind = step["type"]
    match kind:
        case "Fuse" | "ByteFallback" | "Metaspace":
            return 1.0
        case "ByteLevel":  # U+FFFD, 3 bytes, for invalid UTF-8
            return 3.0
        case "WordPiece" | "BPEDecoder" | "CTC":  # may add a space between two tokens
            return 2.0
        case "Strip" if step["stop"] == 0:  # the library panics if it strips the end of a short token
            return 1.0
        case "Replace":
            pattern = step["pattern"]
            replaced = pattern.get("String", pattern.get("Regex", ""))
            if replaced and ("String" in pattern or _REGEX_SYNTAX.isdisjoint(replaced)):
                return max(1.0, len(step["content"].encode()) / len(replaced.encode()))
    raise ModelError(
        f"tokenizer.json has a decoder of type {kind} that is refused, since nothing bounds what it makes of a token; "
        "served are Replace of a plain text, Strip at the start, ByteLevel, ByteFallback, Fuse, Metaspace, WordPiece, "
        "BPEDecoder and CTC."
    )


# ---- tokens as bytes ------------------------------------------------------------------------------------------------


class BytePieces:
    """Token ids to bytes. `skip` in the methods: ids that produce no text."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, decoder: _DecoderFacts) -> None:
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_tokenizer(cls, tokenizer: tokenizers.Tokenizer) -> BytePieces | None:
        """None if the tokenizer has another kind of decoder (WordPiece, CTC, an unknown chain)."""
        facts = _DecoderFacts.from_tokenizer(tokenizer)
        return None if facts is None else cls(tokenizer, facts)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token, including its leading space; empty for an id outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = self._bytes[token_id] = b"" if piece is None else self._decoder.bytes_of(piece)
        return known

    def join(self, token_ids: Iterable[int], skip: frozenset[int]) -> bytes:
        """The bytes of tokens in the middle of a text."""
        return b"".join([self.bytes_of(token_id) for token_id in token_ids if token_id not in skip])

    def join_from_start(self, token_ids: Iterable[int], skip: frozenset[int]) -> tuple[bytes, bool]:
        """The bytes of tokens at the start of a text, and whether the start has been consumed."""
        kept = [token_id for token_id in token_ids if token_id not in skip]
        if not kept or self._decoder.start == "keep":
            return self.join(kept, skip), bool(kept)
        if self._decoder.start == "drop_first_marks":
            first = self.bytes_of(kept[0]).replace(b" ", b"")
            return first + self.join(kept[1:], skip), True
        joined = self.join(kept, skip)
        return joined.removeprefix(b" "), bool(joined)


class _DecoderFacts:
    """What the decoder in tokenizer.json does with each piece and with the start of a text."""

    def __init__(self, alphabet: dict[str, int] | None, has_byte_pieces: bool, start: StartRule) -> None:
        self._alphabet = alphabet
        self._has_byte_pieces = has_byte_pieces
        self.start: StartRule = start

    @classmethod
    def from_tokenizer(cls, tokenizer: tokenizers.Tokenizer) -> _DecoderFacts | None:
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
            # A piece with a character outside the alphabet, possible for added tokens, stands for itself.
            numbers = [self._alphabet.get(character, -1) for character in piece]
            return piece.encode() if -1 in numbers else bytes(numbers)
        if self._has_byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        return piece.replace(_METASPACE, " ").encode()


def _is_metaspace_replace(step: dict[str, Any]) -> bool:
    return (step["pattern"], step["content"]) == ({"String": _METASPACE}, " ")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, other bytes for characters from 256 up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + order): byte for order, byte in enumerate(others)}
