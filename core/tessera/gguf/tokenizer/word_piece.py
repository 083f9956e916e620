"""tokenizer.ggml.model = bert: WordPiece. The file marks pieces that begin a word with `▁`, a vocabulary of the
tokenizers library those that continue one with `##`."""

from __future__ import annotations

from tessera.errors import ModelError
from tessera.gguf.tokenizer.components import SPACE_MARK, Component, added_tokens, document, surrounding
from tessera.gguf.tokenizer.metadata import REMEDY, TokenizerMetadata, TokenType, check_distinct

_CONTINUES = "##"
_LONGEST_WORD = 100


def word_piece_tokenizer(metadata: TokenizerMetadata) -> Component:
    """tokenizer.json as a JSON value. Raises ModelError."""
    pieces = _pieces(metadata)
    unknown = metadata.token_id("unknown")
    if unknown is None:
        raise ModelError(f"The GGUF file's vocabulary has no token for unknown words. {REMEDY}")
    lowercase = metadata.flag("normalizer.lowercase", default=True)
    return document(
        added_tokens=added_tokens(metadata, pieces),
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": metadata.flag("normalizer.strip_accents", default=lowercase),
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_class_and_separator(metadata),
        decoder={"type": "WordPiece", "prefix": _CONTINUES, "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": pieces[unknown],
            "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": _LONGEST_WORD,
            "vocab": {piece: token_id for token_id, piece in enumerate(pieces)},
        },
    )


def _pieces(metadata: TokenizerMetadata) -> list[str]:
    pieces = list(metadata.tokens)
    for token_id in metadata.ids_of_type(TokenType.NORMAL, TokenType.UNUSED):
        piece = pieces[token_id]
        begins = piece.startswith(SPACE_MARK) and len(piece) > 1
        pieces[token_id] = piece[1:] if begins else _CONTINUES + piece
    check_distinct(pieces)
    return pieces


def _class_and_separator(metadata: TokenizerMetadata) -> Component | None:
    begin = metadata.token_id("cls")
    begin = metadata.token_id("bos") if begin is None else begin
    return surrounding(
        metadata,
        begin if metadata.flag("add_bos_token", default=True) else None,
        metadata.token_id("seperator") if metadata.flag("add_sep_token", default=True) else None,
    )
