"""Tessera itself, in the environment that runs the comparison. A peer folder named tessera-... is another version."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Task, drive
from benchmarks.tuning import Tuning


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """It takes the cores that it may use by itself. `LLM` changes nothing of the process it is called in, so the memory
    allocator is told here what a served engine tells it."""
    return Tuning({"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


class Tessera:
    def __init__(self, task: Task) -> None:
        import torch

        import tessera

        self._llm = tessera.LLM(
            task.model,
            skip_tokenizer_init=True,
            dtype=task.dtype,
            max_model_len=task.input + task.output,
            max_num_seqs=max(task.batches),
            enable_prefix_caching=False,
            platform=task.platform or None,
        )
        self._params = tessera.SamplingParams
        self.version = f"{tessera.__version__}, torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        params = self._params(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        answers = self._llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]


if __name__ == "__main__":
    drive(Tessera)
