"""OpenVINO's CPU device, one request at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.embedding_task import EmbeddingTask, drive
from benchmarks.peers.onnx_embeddings import OnnxEmbedder


def load(task: EmbeddingTask) -> OnnxEmbedder:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",  # all threads work on one request
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": task.threads,
    }
    request: Any = openvino.Core().compile_model(task.weights, "CPU", settings).create_infer_request()

    def run(inputs: Mapping[str, Any]) -> Any:
        return request.infer(dict(inputs), share_inputs=True, share_outputs=True)[0]

    return OnnxEmbedder(task.model, run, openvino.__version__)


if __name__ == "__main__":
    drive(load)
