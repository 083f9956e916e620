"""What a GGUF file's metadata says of its tokenizer, checked: the file is not trusted.

Every reader here raises ModelError, one line that names the key, for a value of another type than the key has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from tessera.errors import ModelError

PREFIX = "tokenizer.ggml."
REMEDY = "Give --tokenizer FOLDER, a folder with the model's tokenizer.json."

MAX_TOKENS = 2**20
MAX_TOKEN_CHARACTERS = 2**12
MAX_CHARACTERS = 2**25
"""The most characters in all tokens, or in all merges."""
_MAX_SHOWN = 60

# The ids that a kind of vocabulary has where the file does not say.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}


class TokenType(IntEnum):
    """tokenizer.ggml.token_type, by token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class TokenizerMetadata:
    """The keys of one file."""

    # All of the file's metadata by key, of any type until a method has checked it.
    values: Mapping[str, Any]

    @cached_property
    def model(self) -> str:
        """The kind of vocabulary: gpt2, llama, gemma4, bert, t5, or one that is not served."""
        found = self.text("model")
        if found is None:
            raise ModelError(f"The GGUF file has no tokenizer: {PREFIX}model is missing. {REMEDY}")
        return found

    @cached_property
    def tokens(self) -> list[str]:
        """Text by token id. All differ."""
        found = self.texts("tokens", MAX_TOKENS)
        if not found:
            raise ModelError(f"The GGUF file has no vocabulary: {PREFIX}tokens is missing or empty. {REMEDY}")
        longest = max(found, key=len)
        if len(longest) > MAX_TOKEN_CHARACTERS:
            raise ModelError(
                f"The GGUF file has a token of {len(longest)} characters; at most {MAX_TOKEN_CHARACTERS} are read."
            )
        # Padding: as llama.cpp names tokens that have no text.
        tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(found)]
        check_distinct(tokens)
        return tokens

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token id by text."""
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    @cached_property
    def types(self) -> list[int]:
        """A TokenType by token id; another number is a type that has no meaning here."""
        found = self._array("token_type")
        if found is None:
            return [TokenType.NORMAL] * len(self.tokens)
        if not all(type(kind) is int for kind in found):
            raise _wrong_type("token_type", "an array of integers")
        self._check_length("token_type", found)
        return found

    @cached_property
    def scores(self) -> list[float]:
        """A SentencePiece score by token id: of two pieces, the one with the higher score is merged first."""
        found = self.numbers("scores")
        if found is None:
            raise ModelError(f"The GGUF file has no scores of its tokens: {PREFIX}scores is missing. {REMEDY}")
        self._check_length("scores", found)
        if not all(map(math.isfinite, found)):  # which JSON cannot have
            raise ModelError(f"{PREFIX}scores in the GGUF file holds a value that is not finite. {REMEDY}")
        return found

    def ids_of_type(self, *types: TokenType) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]

    def text(self, name: str) -> str | None:
        """tokenizer.ggml.NAME, a string; None without it."""
        found = self.values.get(PREFIX + name)
        if found is not None and not isinstance(found, str):
            raise _wrong_type(name, "a string")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """tokenizer.ggml.NAME, true or false."""
        found = self.values.get(PREFIX + name, default)
        if not isinstance(found, bool):
            raise _wrong_type(name, "true or false")
        return found

    def token_id(self, name: str) -> int | None:
        """tokenizer.ggml.NAME_token_id; None without it and for an id that no token has, which writers put for none."""
        found = self.values.get(f"{PREFIX}{name}_token_id", _DEFAULT_IDS.get(self.model, {}).get(name))
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool):
            raise _wrong_type(f"{name}_token_id", "a token id")
        return found if 0 <= found < len(self.tokens) else None

    def texts(self, name: str, longest: int) -> list[str] | None:
        """tokenizer.ggml.NAME, strings that UTF-8 can have; None without it. longest: the most of them."""
        found = self._array(name)
        if found is None:
            return None
        if len(found) > longest:
            raise ModelError(f"{PREFIX}{name} in the GGUF file has {len(found)} entries; at most {longest} are read.")
        if not all(type(text) is str for text in found):
            raise _wrong_type(name, "an array of strings")
        if sum(map(len, found)) > MAX_CHARACTERS:
            raise ModelError(f"{PREFIX}{name} in the GGUF file has more than {MAX_CHARACTERS} characters.")
        try:
            "".join(found).encode()
        except UnicodeEncodeError as error:
            raise ModelError(f"{PREFIX}{name} in the GGUF file holds text that is not UTF-8. {REMEDY}") from error
        return found

    def numbers(self, name: str) -> list[float] | None:
        """tokenizer.ggml.NAME, an array of numbers; None without it."""
        found = self._array(name)
        if found is None:
            return None
        if not all(type(number) in (int, float) for number in found):
            raise _wrong_type(name, "an array of numbers")
        try:
            return [*map(float, found)]
        except OverflowError as error:
            raise _wrong_type(name, "an array of numbers") from error

    def _array(self, name: str) -> list[Any] | None:
        found = self.values.get(PREFIX + name)
        if (convert := getattr(found, "tolist", None)) is not None:
            found = convert()
        if isinstance(found, tuple | bytes | bytearray):
            found = list(found)
        if found is not None and not isinstance(found, list):
            raise _wrong_type(name, "an array")
        return found

    def _check_length(self, name: str, entries: list[Any]) -> None:
        if len(entries) != len(self.tokens):
            raise ModelError(
                f"{PREFIX}{name} in the GGUF file has {len(entries)} entries for {len(self.tokens)} tokens. {REMEDY}"
            )


def check_distinct(tokens: Sequence[str]) -> None:
    """Raises ModelError if two tokens have the same text."""
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        twice = next(token for at, token in enumerate(tokens) if first.setdefault(token, at) != at)
        raise ModelError(f"The GGUF file lists the token '{shorten(twice)}' twice. {REMEDY}")


def shorten(text: str) -> str:
    """A text of the file for a one-line message: short, and without unprintable characters."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: _MAX_SHOWN + 1])
    return clean if len(clean) <= _MAX_SHOWN else f"{clean[:_MAX_SHOWN]}..."


def _wrong_type(name: str, kind: str) -> ModelError:
    return ModelError(f"{PREFIX}{name} in the GGUF file is not {kind}. {REMEDY}")
