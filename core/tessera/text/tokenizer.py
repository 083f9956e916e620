"""The tokenizer: text to token ids and back, over the `tokenizers` library and the files of a model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import tokenizers

from tessera.errors import RequestError
from tessera.text.pieces import BytePieces
from tessera.text.tokenizer_files import read_tokenizer_files


class TokenText(NamedTuple):
    """A token as logprobs show it: its text alone, U+FFFD where it holds part of a character, and its exact bytes."""

    text: str
    utf8: bytes


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads; encoding lets other threads run.

    special_tokens: text by name (bos_token, eos_token, ...), as chat templates see it.
    chat_templates: template source by name; empty where the model has none.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        added = tokenizer.get_added_tokens_decoder()
        self.added_token_texts: Mapping[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pieces = BytePieces.of(tokenizer)
        self._prepends_bos = self._encode("", add_special_tokens=True)[:1] == [self.bos_token_id]

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read tokenizer.json and the files beside it. Raises ModelError where one is missing or broken."""
        files = read_tokenizer_files(Path(path))
        return cls(files.tokenizer, files.special_tokens, files.chat_templates)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model may have rows for more."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token_chars(self) -> int:
        """Characters of the longest token: no text has fewer tokens than its length over this."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, add_special_tokens: bool = True, *, max_tokens: int | None = None) -> list[int]:
        """Token ids of a text.

        add_special_tokens: also what the model's tokenizer.json puts around a text; a BOS that the text begins with is
        not doubled. False for the output of a chat template, which has its special tokens already.
        max_tokens: the room there is. A text that is too long for it whatever its tokens are is refused unread.
        Raises RequestError. The time is in proportion to the text, at most about a second for a million characters.
        """
        if max_tokens is not None and len(text) > max_tokens * self.longest_token_chars:
            least = -(-len(text) // self.longest_token_chars)
            raise RequestError(
                f"This model's maximum context length is {max_tokens} tokens. However, you requested a prompt of "
                f"{len(text)} characters, which is at least {least} tokens.",
                param="prompt",
                code="context_length_exceeded",
            )
        ids = self._encode(text, add_special_tokens)
        if add_special_tokens and self._prepends_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Ids outside the vocabulary leave no text; bytes that are not UTF-8 become U+FFFD."""
        if self.pieces is None:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        joined, _ = self.pieces.join_from_start(ids, self.skipped_ids(skip_special_tokens))
        return joined.decode("utf-8", errors="replace")

    def decode_plain(self, ids: Sequence[int]) -> str:
        """`decode` by the tokenizers library, with special tokens kept."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def skipped_ids(self, skip_special_tokens: bool) -> frozenset[int]:
        return self.special_ids if skip_special_tokens else frozenset()

    def token(self, token_id: int) -> str | None:
        """The piece as the vocabulary spells it (`Ġhello`, `▁hello`, `<0x0A>`); None outside the vocabulary."""
        return self._tokenizer.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds in the middle of a text; those of consecutive tokens, joined, are the text's."""
        if self.pieces is None:
            return self.decode_plain((token_id,)).encode()
        return self.pieces.bytes_of(token_id)

    def token_text(self, token_id: int) -> TokenText:
        """How logprobs show a token."""
        utf8 = self.token_bytes(token_id)
        return TokenText(utf8.decode("utf-8", errors="replace"), utf8)

    def _named_id(self, name: str) -> int | None:
        content = self.special_tokens.get(name)
        return None if content is None else self._tokenizer.token_to_id(content)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # The batch call, unlike `encode`, releases the interpreter lock; the fast one leaves out offsets.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise RequestError(
                "The text holds half of a surrogate pair, which no UTF-8 text can.", param="prompt"
            ) from error
        ids: list[int] = encoding.ids
        return ids
