"""transformers' own generate(), with the attention that it chooses itself."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Task, drive
from benchmarks.tuning import Tuning


def tuning(environment: Path, cores: list[int]) -> Tuning:
    return Tuning({"OMP_NUM_THREADS": str(len(cores))})


class Transformers:
    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        self._torch = torch
        self._config = transformers.GenerationConfig
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype), local_files_only=True
        ).eval()
        # A model's own limits and end tokens would end an answer early.
        self._model.generation_config = transformers.GenerationConfig()
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        ids = self._torch.tensor(prompts)
        config = self._config(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        with self._torch.inference_mode():
            answers = self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), generation_config=config, use_cache=True
            )
        return [answers.shape[1] - ids.shape[1]] * answers.shape[0]


if __name__ == "__main__":
    drive(Transformers)
