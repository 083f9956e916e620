"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.embedding_task import EmbeddingTask, drive
from benchmarks.peers.onnx_embeddings import OnnxEmbedder


def load(task: EmbeddingTask) -> OnnxEmbedder:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session: Any = onnxruntime.InferenceSession(task.weights, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Any]) -> Any:
        return session.run(None, dict(inputs))[0]

    return OnnxEmbedder(task.model, run, onnxruntime.__version__)


if __name__ == "__main__":
    drive(load)
