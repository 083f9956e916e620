"""A GGUF file's tokenizer as the files that the tokenizers library and chat templates are read from."""

from __future__ import annotations

from tessera.gguf.tokenizer.files import end_token_ids, tokenizer_config, tokenizer_json

__all__ = ["end_token_ids", "tokenizer_config", "tokenizer_json"]
