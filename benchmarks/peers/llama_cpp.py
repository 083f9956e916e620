"""llama.cpp through the C interface of llama-cpp-python, the only one of its interfaces that decodes several sequences
as one batch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from benchmarks.http_load import HOST
from benchmarks.measure import Stepped, drive
from benchmarks.peers.build_llama_server import program
from benchmarks.task import FILE, PLAIN, SHORT, Task
from benchmarks.tuning import Conversion, Tuning

STEP_TOKENS = 2048
MICRO_STEP_TOKENS = 512
QUANTIZED = {"int8": "Q8_0", "int4": "Q4_K_M"}
LOADS_FILES = True
REQUEST = {"cache_prompt": False}


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """The number of threads is a setting of its own; everything else is fixed when it is built."""
    return Tuning()


def conversion(task: Task) -> Conversion | None:
    if task.precision == FILE:
        return None
    name = Path(task.model).name
    plain = Conversion(f"{name}.{SHORT[task.dtype]}.gguf", "benchmarks.peers.make_gguf", task.dtype)
    if task.precision == PLAIN:
        return plain
    form = QUANTIZED[task.precision]
    return Conversion(f"{name}.{form}.gguf", "benchmarks.peers.quantize_gguf", form, plain)


def version() -> str:
    import llama_cpp

    return f"llama-cpp-python {llama_cpp.__version__}"


def server(environment: Path, task: Task, port: int) -> list[str]:
    rows = max(task.batches)
    command = [str(program(environment)), "-m", task.weights, "--host", HOST, "--port", str(port)]
    command += ["--parallel", str(rows), "--ctx-size", str(rows * task.room), "--threads", str(task.threads)]
    command += ["--batch-size", str(STEP_TOKENS), "--ubatch-size", str(MICRO_STEP_TOKENS)]
    return [*command, "--cache-ram", "0", "--no-webui"]  # do not keep copies of finished prompts


class LlamaCpp:
    def __init__(self, task: Task) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # referenced: called from C
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(task.weights.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp could not load {Path(task.weights).name}.")
        self._context = self._open(model, task)
        self._batch = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self.version = version()

    def _open(self, model: Any, task: Task) -> Any:
        rows = max(task.batches)
        params = self._lib.llama_context_default_params()
        params.n_ctx = rows * task.room
        params.n_seq_max = rows
        params.n_batch, params.n_ubatch = STEP_TOKENS, MICRO_STEP_TOKENS
        params.n_threads = params.n_threads_batch = task.threads
        context = self._lib.llama_init_from_model(model, params)
        if not context:
            raise SystemExit(f"llama.cpp could not open a context of {params.n_ctx} tokens.")
        return context

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        last = [len(prompt) - 1 for prompt in prompts]
        entries = [
            (token, position, row, position == last[row])
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        chosen: dict[int, int] = {}
        for start in range(0, len(entries), STEP_TOKENS):
            found = self._step(entries[start : start + STEP_TOKENS])
            stepped(list(found))
            chosen |= found
        answers = [[chosen[row]] for row in range(len(prompts))]
        for _ in range(tokens - 1):
            last = [position + 1 for position in last]
            chosen = self._step([(chosen[row], last[row], row, True) for row in range(len(prompts))])
            stepped(list(chosen))
            for row, answer in enumerate(answers):
                answer.append(chosen[row])
        return answers

    def _step(self, entries: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Runs (token, position, row, whether to compute logits). Returns the best next token of each row with
        logits."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, row, wanted) in enumerate(entries):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        if self._lib.llama_decode(self._context, batch) != 0:
            raise SystemExit(f"llama.cpp could not run a step of {len(entries)} tokens.")
        return {
            row: self._lib.llama_sampler_sample(self._sampler, self._context, index)
            for index, (_, _, row, wanted) in enumerate(entries)
            if wanted
        }


if __name__ == "__main__":
    drive(LlamaCpp)
