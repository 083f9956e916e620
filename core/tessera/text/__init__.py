"""Text in, token ids out, and back: tokenizer, chat template, incremental detokenizer, stop strings, logprob text."""

from __future__ import annotations

from tessera.text.detokenizer import IncrementalDetokenizer
from tessera.text.stop import StopChecker
from tessera.text.template import ChatTemplate
from tessera.text.tokenizer import Tokenizer, TokenText

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopChecker", "TokenText", "Tokenizer"]
