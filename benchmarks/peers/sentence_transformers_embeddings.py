"""sentence-transformers, with torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.embedding_task import EmbeddingTask, drive


class SentenceTransformers:
    def __init__(self, task: EmbeddingTask) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(task.threads)
        kind = {"torch_dtype": getattr(torch, task.dtype)}
        self._model: Any = sentence_transformers.SentenceTransformer(task.model, device="cpu", model_kwargs=kind)
        self._batch = max(task.batches)
        self.version = f"{sentence_transformers.__version__}, torch {torch.__version__}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        found = self._model.encode(list(texts), batch_size=self._batch, show_progress_bar=False)
        vectors: list[list[float]] = found.tolist()
        return vectors


if __name__ == "__main__":
    drive(SentenceTransformers)
