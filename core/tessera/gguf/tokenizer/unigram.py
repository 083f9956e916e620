"""tokenizer.ggml.model = t5: SentencePiece's Unigram, of T5 and of XLM-RoBERTa's family."""

from __future__ import annotations

import base64
import struct

from tessera.errors import ModelError
from tessera.gguf.tokenizer.components import (
    SPACE_MARK,
    Component,
    added_tokens,
    begin_and_end,
    document,
    replace,
    sequence,
)
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, TokenType

_SIZE = struct.Struct("<I")
_UNIT = 4


def unigram_tokenizer(metadata: TokenizerMetadata) -> Component:
    """tokenizer.json as a JSON value. Raises ModelError."""
    unknown = metadata.token_id("unknown")
    if unknown is None:
        raise ModelError(f"The GGUF file's vocabulary has no token for unknown text. {REMEDY}")
    prefix = metadata.flag("add_space_prefix", default=True)
    mark = {
        "type": "Metaspace",
        "replacement": SPACE_MARK,
        "prepend_scheme": "always" if prefix else "never",
        "split": True,
    }
    words: list[Component] = [{"type": "WhitespaceSplit"}] if metadata.flag("remove_extra_whitespaces", True) else []
    has_bytes = bool(metadata.ids_of_type(TokenType.BYTE))
    return document(
        added_tokens=added_tokens(metadata, metadata.tokens),
        normalizer=_charsmap(metadata),
        pre_tokenizer=sequence("pretokenizers", [*words, mark]),
        post_processor=begin_and_end(metadata, add_bos=False, add_eos=True),
        decoder=_byte_decoder(prefix=prefix) if has_bytes else mark,
        model={
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": list(zip(metadata.tokens, metadata.scores, strict=True)),
            "byte_fallback": has_bytes,
        },
    )


def _byte_decoder(*, prefix: bool) -> Component | None:
    strip: list[Component] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return sequence("decoders", [replace(SPACE_MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip])


def _charsmap(metadata: TokenizerMetadata) -> Component | None:
    """SentencePiece's compiled table of replacements: the size of a trie in bytes, the trie, and the texts that it
    points to, each with a zero byte after it."""
    numbers = metadata.numbers("precompiled_charsmap")
    if not numbers:
        return None
    try:
        content = bytes(int(number) & 0xFF for number in numbers)
        (size,) = _SIZE.unpack_from(content)
        texts = content[_SIZE.size + size :]
        well_formed = size > 0 and size % _UNIT == 0 and texts.endswith(b"\0") and texts.decode() is not None
    except (struct.error, UnicodeDecodeError, ValueError, OverflowError):
        well_formed = False
    if not well_formed:
        raise ModelError(f"{PREFIX}precompiled_charsmap in the GGUF file is broken. {REMEDY}")
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}
