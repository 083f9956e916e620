"""tokenizer.ggml.model = gpt2: BPE over bytes, which the vocabulary writes in GPT-2's alphabet."""

from __future__ import annotations

from tessera.errors import ModelError
from tessera.gguf.tokenizer.components import (
    Component,
    added_tokens,
    begin_and_end,
    bpe,
    byte_level,
    document,
    merges,
    sequence,
)
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, TokenType, shorten
from tessera.gguf.tokenizer.pieces import merges_by_rank
from tessera.gguf.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

# Families whose ranks are the token ids, so that a file without merges lacks nothing.
_RANKED = frozenset({"kimi-k2"})
# Families whose mask token takes the spaces before it.
_MASKS = {"jina-v2-de": "<mask>", "jina-v2-es": "<mask>", "jina-v2-code": "<mask>", "modern-bert": "[MASK]"}


def byte_level_tokenizer(metadata: TokenizerMetadata) -> Component:
    """tokenizer.json as a JSON value. Raises ModelError."""
    name, family = _family(metadata)
    tokens = metadata.tokens
    pairs = merges(metadata, tokens)
    if pairs is None and name in _RANKED:
        pairs = merges_by_rank(tokens, metadata.ids_of_type(TokenType.NORMAL))
    if pairs is None:
        raise ModelError(f"The GGUF file has no merges of its tokens: {PREFIX}merges is missing. {REMEDY}")
    mask = metadata.ids.get(_MASKS.get(name, ""))
    return document(
        added_tokens=added_tokens(metadata, tokens, lstrip=[] if mask is None else [mask]),
        normalizer={"type": "NFC"} if family.nfc else None,
        pre_tokenizer=sequence("pretokenizers", family.steps),
        post_processor=begin_and_end(metadata, add_bos=family.add_bos),
        decoder=byte_level(use_regex=True),
        model=bpe(tokens, pairs, ignore_merges=family.ignore_merges),
    )


def _family(metadata: TokenizerMetadata) -> tuple[str, PreTokenizer]:
    name = metadata.text("pre")
    if name is None:
        raise ModelError(f"The GGUF file does not say how its tokenizer splits text: {PREFIX}pre is missing. {REMEDY}")
    family = PRE_TOKENIZERS.get(name)
    if family is None:
        raise ModelError(
            f"The GGUF file's tokenizer splits text as '{shorten(name)}' ({PREFIX}pre), which is not known here. "
            f"{REMEDY}"
        )
    return name, family
