"""Text in, token ids out, and back: tokenizer, chat template, incremental detokenizer, stop strings, and the processes
in which what a model folder brings is run on text."""

from __future__ import annotations

from tessera.text.detokenizer import IncrementalDetokenizer
from tessera.text.stop import StopChecker
from tessera.text.tokenizer import Tokenizer, TokenText, Vocabulary

__all__ = ["IncrementalDetokenizer", "StopChecker", "TokenText", "Tokenizer", "Vocabulary"]
