"""What a runtime of ONNX files leaves to its caller: tokens, the mean over them, and the vector's length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Of the file, each int64 [texts, tokens]. It has one output, the states [texts, tokens, width]."""

Run = Callable[[Mapping[str, Any]], Any]
"""From the inputs to the states, as NumPy arrays."""


class OnnxEmbedder:
    def __init__(self, model: str, run: Run, version: str) -> None:
        import numpy as np
        from tokenizers import Tokenizer

        self._numpy: Any = np
        self._run = run
        self._tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.enable_padding()
        self.version = version

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        np = self._numpy
        rows = self._tokenizer.encode_batch(list(texts))
        columns = [[row.ids for row in rows], [row.attention_mask for row in rows], [row.type_ids for row in rows]]
        inputs = {name: np.array(column, np.int64) for name, column in zip(INPUTS, columns, strict=True)}
        mask = inputs["attention_mask"][:, :, None].astype(np.float32)
        mean = (self._run(inputs) * mask).sum(axis=1) / mask.sum(axis=1)
        vectors: list[list[float]] = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).tolist()
        return vectors
