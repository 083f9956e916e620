"""Tessera itself, in the environment that runs the comparison. A peer folder named tessera-... is another version."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.http_load import HOST
from benchmarks.measure import Stepped, drive
from benchmarks.task import FILE, PLAIN, Task
from benchmarks.tuning import Conversion, Tuning, with_tokenizer

QUANTIZED = {"int8": "int8", "int4": "int4"}
LOADS_FILES = True


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """Tessera uses all available cores by itself. `LLM` changes nothing in the process that calls it, so the memory
    allocator is configured here as a served engine would."""
    return Tuning({"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


def conversion(task: Task) -> Conversion | None:
    return with_tokenizer(task)


def version() -> str:
    import torch

    import tessera

    return f"{tessera.__version__}, torch {torch.__version__}"


def bits(task: Task) -> float:
    """Bits per weight according to `tessera plan`; the file stays the same, since weights are quantized at load."""
    command = [sys.executable, "-m", "tessera.cli", "plan", task.model, "--dtype", task.dtype, "--json", *_flags(task)]
    planned = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]
    return float(8 * planned["weight_bytes"] / planned["num_weights"])


def server(environment: Path, task: Task, port: int) -> list[str]:
    command = [str(environment / "bin" / "python"), "-m", "tessera.cli", "serve", task.weights]
    command += ["--served-model-name", "bench", "--host", HOST, "--port", str(port), "--dtype", task.dtype]
    command += ["--max-model-len", str(task.room), "--max-num-seqs", str(max(task.batches))]
    return [*command, "--no-enable-prefix-caching", "--disable-log-requests", *_flags(task)]


def _flags(task: Task) -> list[str]:
    quantized = [] if task.precision in (PLAIN, FILE) else ["--quantization", task.precision]
    return quantized + (["--platform", task.platform] if task.platform else [])


class Tessera:
    """Does what LLM does in its process, and also observes every step."""

    def __init__(self, task: Task) -> None:
        from tessera.config import build_config
        from tessera.engine.engine import Engine
        from tessera.engine.offline import OfflineEngine
        from tessera.sampling_params import RequestOutputKind, SamplingParams
        from tessera.scheduler.outputs import EngineCoreOutputs

        driver = self

        class Heard(Engine):
            def step(self) -> EngineCoreOutputs | None:
                outputs = super().step()
                if outputs is not None:
                    keys, counts = outputs.keys, outputs.counts
                    driver._stepped(keys.repeat(counts).tolist())
                return outputs

        config = build_config(
            model=task.model,
            skip_tokenizer_init=True,
            dtype=task.dtype,
            quantization=None if task.precision in (PLAIN, FILE) else task.precision,
            max_model_len=task.room,
            max_num_seqs=max(task.batches),
            enable_prefix_caching=False,
            platform=task.platform or None,
        )
        self._stepped: Stepped = lambda keys: None
        self._offline = OfflineEngine(Heard(dataclasses.replace(config, embedded=True)), None)
        self._params = SamplingParams
        self._at_the_end = RequestOutputKind.FINAL_ONLY
        self.version = version()

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        self._stepped = stepped
        params = self._params(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=self._at_the_end
        )
        offline = self._offline
        jobs = [offline.job(offline.front.prepare(prompt, params), params) for prompt in prompts]
        return [list(answer.outputs[0].token_ids) for answer in offline.run(jobs, lambda answer: None)]


if __name__ == "__main__":
    drive(Tessera)
