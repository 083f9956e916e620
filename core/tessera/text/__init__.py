"""Text to token ids and back: tokenizer, chat template, incremental detokenizer, stop strings, and the processes that
run a model folder's templates and tokenizers."""

from __future__ import annotations

from tessera.text.detokenizer import IncrementalDetokenizer
from tessera.text.stop import StopChecker, StopStrings
from tessera.text.tokenizer import Tokenizer, TokenText, Vocabulary

__all__ = ["IncrementalDetokenizer", "StopChecker", "StopStrings", "TokenText", "Tokenizer", "Vocabulary"]
