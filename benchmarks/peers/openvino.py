"""OpenVINO GenAI with continuous batching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Stepped, drive
from benchmarks.task import PLAIN, SHORT, Task
from benchmarks.tuning import Conversion, Tuning

CACHE_GIB = 4
QUANTIZED = {"int8": "int8", "int4": "int4"}
FORMATS = {"bfloat16": "fp16", "float16": "fp16", "float32": "fp32"}


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """Threads and precision are settings of the engine."""
    return Tuning()


def conversion(task: Task) -> Conversion:
    # The 16-bit format for weights; the precision hint determines the arithmetic.
    form = FORMATS[task.dtype] if task.precision == PLAIN else task.precision
    return Conversion(f"{Path(task.model).name}.{form}.openvino", "benchmarks.peers.make_openvino", form)


class OpenVino:
    def __init__(self, task: Task) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self._array: Any = np.array
        self._tensor = openvino.Tensor
        self._genai: Any = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = max(task.batches)
        scheduler.max_num_batched_tokens = 2048
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        settings = {"INFERENCE_PRECISION_HINT": SHORT[task.dtype], "INFERENCE_NUM_THREADS": task.threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(task.weights, scheduler, "CPU", settings, {})
        self.version = f"openvino-genai {openvino_genai.__version__}"

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        handles = [
            self._pipeline.add_request(row, self._tensor(self._array([prompt], dtype="int64")), config)
            for row, prompt in enumerate(prompts)
        ]
        answers: list[list[int]] = [[] for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            new = {row: _new(handle) for row, handle in enumerate(handles) if handle.can_read()}
            for row, ids in new.items():
                answers[row] += ids
            stepped([row for row, ids in new.items() for _ in ids])
        return answers


def _new(handle: Any) -> list[int]:
    """The tokens of an answer since the last read."""
    return [token for output in handle.read().values() for token in output.generated_ids]


if __name__ == "__main__":
    drive(OpenVino)
