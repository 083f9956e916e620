"""Tessera's LLM.embed, in its process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from benchmarks.embedding_task import EmbeddingTask, drive

import tessera


class Tessera:
    def __init__(self, task: EmbeddingTask) -> None:
        self._llm = tessera.LLM(
            task.model, dtype=task.dtype, threads=task.threads, max_num_seqs=max(task.batches), platform="cpu"
        )
        self.version = f"{tessera.__version__}, torch {torch.__version__}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [output.outputs.embedding for output in self._llm.embed(texts, use_tqdm=False)]


if __name__ == "__main__":
    drive(Tessera)
