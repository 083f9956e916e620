"""The tokens that end an answer. Files name EOS, and many name no other, though a model of chats ends its turns with
another token; these are known by their text."""

from __future__ import annotations

from tessera.gguf.tokenizer.metadata import TokenizerMetadata, TokenType

_NAMED = ("eos", "eot", "eom")
_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
        "<\uff5cend▁of▁sentence\uff5c>",
        "[e~[",
    }
)
# With the tokens on the left in a vocabulary, the one on the right ends a part of an answer, or nothing.
_NO_ENDS = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|calls|>", "<|flush|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
)


def end_tokens(metadata: TokenizerMetadata) -> list[int]:
    """Token ids, each once: those that the file names, then the control tokens that are known to end a turn."""
    ids, control = metadata.ids, {*metadata.ids_of_type(TokenType.CONTROL)}
    left_out = {end for others, end in _NO_ENDS if others <= ids.keys()}
    named = [metadata.token_id(name) for name in _NAMED]
    by_text = sorted(ids[text] for text in _ENDS - left_out if text in ids and ids[text] in control)
    return list(dict.fromkeys(token_id for token_id in (*named, *by_text) if token_id is not None))
