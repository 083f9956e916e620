"""tokenizer.ggml.model = llama and gemma4: SentencePiece's BPE, with `▁` for a space and a token for each byte.

Files of kind llama have a score for each piece and no merges, files of kind gemma4 the merges. Before anything else,
llama.cpp finds user-defined runs of spaces in a text; the models' own tokenizer.json has merges for them instead, which
come before all others.
"""

from __future__ import annotations

from tessera.errors import ModelError
from tessera.gguf.tokenizer.components import (
    SPACE_MARK,
    Component,
    added_tokens,
    begin_and_end,
    bpe,
    document,
    merges,
    replace,
    sequence,
)
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, TokenType
from tessera.gguf.tokenizer.pieces import merges_by_rank

# Special tokens that do not take the spaces and lines after them in Phi-3's vocabulary; its others do.
_PHI_3_PLAIN = frozenset({"<unk>", "<s>", "<|endoftext|>"})
_CHAT_TEMPLATE = "tokenizer.chat_template"


def scored_tokenizer(metadata: TokenizerMetadata) -> Component:
    """tokenizer.json of a vocabulary with scores, as a JSON value. Raises ModelError."""
    pieces = _pieces(metadata)
    scores = metadata.scores
    by_score = sorted(metadata.ids_of_type(TokenType.NORMAL), key=lambda token_id: -scores[token_id])
    pairs = merges_by_rank(pieces, [*metadata.ids_of_type(TokenType.USER_DEFINED), *by_score])
    prefix = metadata.flag("add_space_prefix", default=True)
    return _document(metadata, pieces, pairs, prefix=prefix, add_bos=True)


def gemma_4_tokenizer(metadata: TokenizerMetadata) -> Component:
    """tokenizer.json of a vocabulary with merges, as a JSON value. Raises ModelError.

    Chat templates of these models write BOS, and the tokenizers of the models that have one add none, whatever the file
    says.
    """
    pieces = _pieces(metadata)
    pairs = merges(metadata, pieces)
    if pairs is None:
        raise ModelError(f"The GGUF file has no merges of its tokens: {PREFIX}merges is missing. {REMEDY}")
    read = _document(metadata, pieces, pairs, prefix=False, add_bos=True)
    return read | {"post_processor": None} if _CHAT_TEMPLATE in metadata.values else read


def _document(
    metadata: TokenizerMetadata, pieces: list[str], pairs: list[tuple[str, str]], *, prefix: bool, add_bos: bool
) -> Component:
    """prefix: whether a space is put before each text, and removed from the decoded one."""
    unknown = metadata.token_id("unknown")
    prepend: list[Component] = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefix else []
    strip: list[Component] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decode: list[Component] = [replace(SPACE_MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return document(
        added_tokens=added_tokens(metadata, pieces, rstrip=_rstripped(metadata)),
        normalizer=sequence("normalizers", [*prepend, replace(" ", SPACE_MARK)]),
        post_processor=begin_and_end(metadata, add_bos=add_bos),
        decoder=sequence("decoders", decode + strip),
        model=bpe(
            pieces,
            pairs,
            unk_token=None if unknown is None else pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    )


def _pieces(metadata: TokenizerMetadata) -> list[str]:
    """Text by token id, with runs of spaces as the model has them: converters write them as spaces."""
    pieces = list(metadata.tokens)
    for token_id in metadata.ids_of_type(TokenType.USER_DEFINED):
        marks = SPACE_MARK * len(pieces[token_id])
        if not pieces[token_id].strip(" ") and marks not in metadata.ids:
            pieces[token_id] = marks
    return pieces


def _rstripped(metadata: TokenizerMetadata) -> list[int]:
    """The tokens that take the spaces after them; no key of the file says which."""
    if metadata.values.get("general.architecture") != "phi3":
        return []
    special = metadata.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    return [token_id for token_id in special if metadata.tokens[token_id] not in _PHI_3_PLAIN]
