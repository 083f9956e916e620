"""vLLM's CPU backend. If zentorch is installed in the same environment, vLLM uses its kernels automatically."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as of_package
from pathlib import Path

from benchmarks.http_load import HOST
from benchmarks.measure import Stepped, drive
from benchmarks.task import PLAIN, Task
from benchmarks.tuning import Conversion, Tuning, preload, ranges, with_tokenizer

CACHE_GIB = 4
QUANTIZED = {"int8": "W8A8"}


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """Follows vLLM's guide to the CPU backend: cores bound and none reserved, and tcmalloc and its environment's own
    OpenMP library preloaded."""
    libraries, missing = preload(environment, system=("tcmalloc_minimal",), bundled=("libiomp5.so",))
    variables = {
        "LD_PRELOAD": libraries,
        "VLLM_CPU_OMP_THREADS_BIND": ranges(cores),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Tuning(variables, missing)


def conversion(task: Task) -> Conversion | None:
    if task.precision == PLAIN:
        return with_tokenizer(task)
    return Conversion(f"{Path(task.model).name}.w8a8", "benchmarks.peers.make_w8a8", task.dtype)


def version() -> str:
    found = []
    for name in ("vllm-cpu", "vllm", "torch", "zentorch"):
        try:
            found.append(f"{name} {of_package(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def server(environment: Path, task: Task, port: int) -> list[str]:
    command = [str(environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", task.weights]
    command += ["--served-model-name", "bench", "--host", HOST, "--port", str(port), "--dtype", task.dtype]
    command += ["--max-model-len", str(task.room), "--max-num-seqs", str(max(task.batches))]
    return [*command, "--no-enable-prefix-caching", "--seed", str(task.seed)]


class Vllm:
    def __init__(self, task: Task) -> None:
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._llm = LLM(
            model=task.weights,
            skip_tokenizer_init=True,
            dtype=task.dtype,
            max_model_len=task.room,
            max_num_seqs=max(task.batches),
            enable_prefix_caching=False,
            seed=task.seed,
        )
        self._params = SamplingParams
        self._new_tokens = RequestOutputKind.DELTA
        self.version = version()

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        """The same steps as LLM.generate."""
        params = self._params(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=self._new_tokens
        )
        engine = self._llm.llm_engine
        answers: dict[str, list[int]] = {}
        for row, prompt in enumerate(prompts):
            engine.add_request(str(row), {"prompt_token_ids": prompt}, params)
            answers[str(row)] = []
        while engine.has_unfinished_requests():
            new = {output.request_id: output.outputs[0].token_ids for output in engine.step()}
            for row_name, ids in new.items():
                answers[row_name] += ids
            stepped([row_name for row_name, ids in new.items() for _ in ids])
        return list(answers.values())


if __name__ == "__main__":
    drive(Vllm)
