"""The tokenizer: text to token ids and back, with the `tokenizers` library and the files of a model folder.

Model folders are not trusted. The parts that encode text (normalizer, pre-tokenizer, the model itself) may take any
amount of time and memory, so `Tokenizer` is for the text worker, which has limits. A front end holds a `Vocabulary`,
which is loaded without those parts and can only turn token ids into text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec
import tokenizers

from tessera.config.model_folder import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    first_line,
    names_in,
    read_bytes,
    read_json,
    read_text,
    refuse_tokenizer,
)
from tessera.errors import ModelError, RequestError, printable
from tessera.text.decoder import BytePieces, check_decoder
from tessera.text.user_text import PromptPiece, SpecialTexts, SpecialToken
from tessera.text_pair import TextPair

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Parts of tokenizer.json that decoding does not use.
_ENCODING_PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor")
_NULL = msgspec.Raw(b"null")
_NO_MERGES = msgspec.Raw(b"[]")
_MAX_MESSAGE_CHARS = 300

TruncationSide = Literal["left", "right"]


class TokenText(NamedTuple):
    """A token as logprobs show it: its text, with U+FFFD for part of a character, and its exact bytes."""

    text: str
    utf8: bytes


class EncodedPair(NamedTuple):
    """A pair of texts in tokens."""

    ids: list[int]
    # How many of them belong to the first text, with the special tokens around it, by the tokenizer's token types; all
    # of them if it tells the texts apart by special tokens alone.
    boundary: int


class BrokenTokenizerError(RequestError):
    """The tokenizers library panicked on a text, so its state in memory must not be used any more."""


class Vocabulary:
    """A model's token ids and their text. Safe to use from several threads.

    special_tokens: text by name (bos_token, eos_token, ...). Raises ModelError for a decoder that check_decoder()
    refuses.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_tokens: Mapping[str, str] | None = None) -> None:
        check_decoder(tokenizer)
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens or {})
        added = tokenizer.get_added_tokens_decoder()
        self.added_token_texts: Mapping[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pieces = BytePieces.from_tokenizer(tokenizer)
        self._texts: dict[int, TokenText] = {}

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """Reads the parts of tokenizer.json that decoding needs, and the files beside it. Raises ModelError if one is
        missing or broken."""
        return cls(*_read_tokenizer(Path(path), _without_encoding))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including added ones. A model may have more rows than this."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids outside the vocabulary produce no text; invalid UTF-8 becomes U+FFFD."""
        if self.pieces is None:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        joined, _ = self.pieces.join_from_start(ids, self.skipped_ids(skip_special_tokens))
        return joined.decode("utf-8", errors="replace")

    def decode_plain(self, ids: Sequence[int]) -> str:
        """`decode` by the tokenizers library, keeping special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def skipped_ids(self, skip_special_tokens: bool, except_texts: Sequence[str] = ()) -> frozenset[int]:
        """The tokens that have no text. except_texts: special tokens, by their text, that have."""
        if not skip_special_tokens:
            return frozenset()
        return frozenset(token for token in self.special_ids if self.added_token_texts[token] not in except_texts)

    def language_id(self, name: str) -> int | None:
        """The special token that stands for a language, which has the name itself (`fra_Latn`) or has it between
        lines (`__fr__`); None if there is none."""
        roles = self.special_tokens.values()
        for token_id in self.special_ids:
            text = self.added_token_texts[token_id]
            if text in (name, f"__{name}__") and text not in roles:
                return token_id
        return None

    def token(self, token_id: int) -> str | None:
        """The piece as the vocabulary spells it (`Ġhello`, `▁hello`, `<0x0A>`); None for an id outside it."""
        return self._tokenizer.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds in the middle of a text. Those of consecutive tokens join to the text's."""
        if self.pieces is None:
            return self.decode_plain((token_id,)).encode()
        return self.pieces.bytes_of(token_id)

    def token_text(self, token_id: int) -> TokenText:
        """A token as logprobs show it."""
        known = self._texts.get(token_id)
        if known is None:
            utf8 = self.token_bytes(token_id)
            known = self._texts[token_id] = TokenText(utf8.decode("utf-8", errors="replace"), utf8)
        return known

    def _named_id(self, name: str) -> int | None:
        content = self.special_tokens.get(name)
        return None if content is None else self._tokenizer.token_to_id(content)


class Tokenizer(Vocabulary):
    """A model's whole tokenizer. Has no limits of time or memory; the text worker does, for untrusted models.

    chat_templates: template source by name; empty if the model has none. response_template: how the model says that its
    answers are read (parsing/response_template), as JSON; "" if it does not.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        response_template: str = "",
    ) -> None:
        super().__init__(tokenizer, special_tokens)
        self.chat_templates = dict(chat_templates or {})
        self.response_template = response_template
        self._prepends_bos = self._encode("", add_special_tokens=True)[:1] == [self.bos_token_id]

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """Reads tokenizer.json and the files beside it. Raises ModelError if one is missing or broken."""
        folder = Path(path)
        read = _read_tokenizer(folder)
        try:
            return cls(*read, _chat_templates(folder), _response_template(folder))
        except RequestError as error:
            raise ModelError(f"{folder / 'tokenizer.json'} cannot be used: {error.message}") from error

    def document(self) -> bytes:
        """tokenizer.json, with the tokens that only the files beside it define."""
        return self._tokenizer.to_str().encode()

    @cached_property
    def longest_token_chars(self) -> int:
        """Characters of the longest token. A text has at least its length divided by this many tokens."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        pieces: Sequence[PromptPiece] = (),
        truncation_side: TruncationSide | None = None,
    ) -> list[int]:
        """The token ids of a text.

        add_special_tokens: also add what tokenizer.json puts around a text, without doubling a BOS that the text begins
        with. Use False for the output of a chat template, which already contains its special tokens.
        max_tokens: the context available. A text that must exceed it whatever its tokens is refused without encoding.
        pieces: those of the text, if the special tokens in some of them are to be text.
        truncation_side: a text that is longer than max_tokens is cut there; what is put around it stays.
        Raises RequestError, also for a special token that the tokenizer cannot take as text. An ordinary tokenizer
        takes about one second for a million characters.
        """
        if truncation_side is None:
            self._check_length(len(text), max_tokens)
        literal = any(piece.literal for piece in pieces)
        with self._truncation(max_tokens, truncation_side):
            ids = self._encode_pieces(pieces, add_special_tokens) if literal else self._encode(text, add_special_tokens)
        if add_special_tokens and self._prepends_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def encode_pair(
        self,
        pair: TextPair,
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
    ) -> EncodedPair:
        """The token ids of two texts, as tokenizer.json joins them. The longer text is cut first. The arguments and
        errors are those of encode()."""
        if truncation_side is None:
            self._check_length(sum(map(len, pair)), max_tokens)
        with self._truncation(max_tokens, truncation_side):
            encoding = self._encoding((pair.first, pair.second), add_special_tokens)
        ids: list[int] = encoding.ids
        types: list[int] = encoding.type_ids
        return EncodedPair(ids, types.index(1) if 1 in types else len(ids))

    def _check_length(self, characters: int, max_tokens: int | None) -> None:
        if max_tokens is not None and characters > max_tokens * self.longest_token_chars:
            least = -(-characters // self.longest_token_chars)
            raise RequestError(
                f"This model's maximum context length is {max_tokens} tokens. However, you requested a prompt of "
                f"{characters} characters, which is at least {least} tokens.",
                param="prompt",
                code="context_length_exceeded",
            )

    @contextmanager
    def _truncation(self, max_tokens: int | None, side: TruncationSide | None) -> Iterator[None]:
        if max_tokens is None or side is None:
            yield
            return
        self._tokenizer.enable_truncation(max_tokens, direction=side)
        try:
            yield
        finally:
            self._tokenizer.no_truncation()

    @cached_property
    def special_texts(self) -> SpecialTexts:
        added = self._tokenizer.get_added_tokens_decoder().values()
        return SpecialTexts(SpecialToken(one.content, one.lstrip, one.rstrip) for one in added if one.special)

    def _encode_pieces(self, pieces: Sequence[PromptPiece], add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids += (
                self._encode_literally(piece.text, first=not ids) if piece.literal else self._encode(piece.text, False)
            )
        if not add_special_tokens:
            return ids
        inner, whole = self._encode("a", False), self._encode("a", True)
        begin = next(at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
        return whole[:begin] + ids + whole[begin + len(inner) :]

    def _encode_literally(self, text: str, *, first: bool) -> list[int]:
        space = self._tokenizer.pre_tokenizer
        begins = (
            isinstance(space, tokenizers.pre_tokenizers.Metaspace) and space.prepend_scheme == "first" and not first
        )
        self._tokenizer.encode_special_tokens = True
        try:
            if begins:
                space.prepend_scheme = "never"  # the text does not begin here
            ids = self._encode(text, False)
        finally:
            self._tokenizer.encode_special_tokens = False
            if begins:
                space.prepend_scheme = "first"
        for token in self.special_ids.intersection(ids):
            if (found := self.added_token_texts[token]) in text:
                raise RequestError(
                    f"The messages hold '{found}', a special token that this model's tokenizer cannot take as text.",
                    param="messages",
                )
        return ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._encoding(text, add_special_tokens).ids
        return ids

    def _encoding(self, text: str | tuple[str, str], add_special_tokens: bool) -> tokenizers.Encoding:
        try:
            # Unlike `encode`, the batch call releases the GIL; the fast version skips offsets.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise RequestError(half_a_pair(), param="prompt") from error
        except MemoryError:
            raise
        except Exception as error:  # the library has no more specific exceptions
            raise RequestError(_cannot_encode(error), param="prompt") from error
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise BrokenTokenizerError(_cannot_encode(error), param="prompt") from error
        return encoding


def half_a_pair() -> str:
    """The message for a text that cannot be encoded as UTF-8."""
    return "The text holds half of a surrogate pair, which no UTF-8 text can."


def _cannot_encode(error: BaseException) -> str:
    said = " ".join(str(error)[:_MAX_MESSAGE_CHARS].split())
    return f"The model's tokenizer cannot encode this text: {said}"


def _is_panic(error: BaseException) -> bool:
    """Rust panics are raised as a BaseException whose class is not public."""
    return type(error).__name__ == "PanicException"


# ---- files -------------------------------------------------------------------------------------------------------


def _without_encoding(data: bytes) -> bytes:
    """tokenizer.json without the parts that only encoding needs. Invalid JSON is returned as is, for the reader."""
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(parts.get("model", b"{}"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return data
    parts |= {name: _NULL for name in _ENCODING_PARTS if name in parts}
    if "merges" in model:
        model["merges"] = _NO_MERGES
        parts["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(parts)


def _read_tokenizer(
    folder: Path, part: Callable[[bytes], bytes] = bytes
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """A folder's tokenizer, including tokens that only the files beside tokenizer.json define, and the text of special
    tokens by name. part: reduces tokenizer.json to what is needed. Raises ModelError."""
    config = read_json(folder, "tokenizer_config.json") or {}
    special_tokens = _special_tokens(read_json(folder, "special_tokens_map.json") or {}) | _special_tokens(config)
    refuse_tokenizer(str(folder), names_in(folder))
    data = read_bytes(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(part(data or b""))
    except BaseException as error:  # the library has no more specific exceptions, or panics
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise ModelError(f"'{printable(folder / 'tokenizer.json')}' cannot be read: {first_line(error)}.") from error
    # Settings that training left here would silently truncate prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_missing_tokens(tokenizer, config.get("added_tokens_decoder"))
    _mark_special(tokenizer, special_tokens)
    return tokenizer, special_tokens


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    contents = {name: _content(config.get(name)) for name in SPECIAL_TOKEN_NAMES}
    return {name: content for name, content in contents.items() if content is not None}


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _add_missing_tokens(tokenizer: tokenizers.Tokenizer, added: Any) -> None:
    """Adds tokens that only tokenizer_config.json lists. Tokens in tokenizer.json are left unchanged."""
    if not isinstance(added, dict):
        return
    if not all(
        re.fullmatch("[0-9]{1,10}", token_id) and isinstance(fields, dict) for token_id, fields in added.items()
    ):
        raise ModelError("added_tokens_decoder in tokenizer_config.json does not map token ids to tokens.")
    for token_id, fields in sorted(added.items(), key=lambda item: int(item[0])):
        content = _content(fields)
        if content is None or tokenizer.token_to_id(content) is not None:
            continue
        flags = {name: bool(fields[name]) for name in _ADDED_TOKEN_FLAGS if name in fields}
        tokenizer.add_tokens([tokenizers.AddedToken(content, **flags)])
        if tokenizer.token_to_id(content) != int(token_id):
            raise ModelError(
                f"tokenizer_config.json gives the added token '{printable(content, 40)}' the id {token_id}, "
                f"but tokenizer.json has room for it only at {tokenizer.token_to_id(content)}."
            )


def _mark_special(tokenizer: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> None:
    """Marks the named tokens as special if tokenizer.json has them as ordinary ones. Adds none to the vocabulary."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    for content in special_tokens.values():
        if content not in special and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([tokenizers.AddedToken(content, normalized=False, special=True)])


def _chat_templates(folder: Path) -> dict[str, str]:
    """Template files take precedence over the entry in tokenizer_config.json."""
    in_config = (read_json(folder, "tokenizer_config.json") or {}).get("chat_template")
    templates = {}
    if isinstance(in_config, str):
        templates["default"] = in_config
    elif isinstance(in_config, list):
        templates |= {entry["name"]: entry["template"] for entry in in_config if _is_named_template(entry)}
    additional = sorted(folder.glob("additional_chat_templates/*.jinja"))
    named = [(path.stem, f"additional_chat_templates/{path.name}") for path in additional]
    for name, file in (*named, ("default", "chat_template.jinja")):
        source = read_text(folder, file, MAX_TEMPLATE_BYTES)
        if source is not None:
            templates[name] = source
    return templates


def _response_template(folder: Path) -> str:
    found = (read_json(folder, "tokenizer_config.json") or {}).get("response_template")
    return "" if found is None else json.dumps(found)


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
