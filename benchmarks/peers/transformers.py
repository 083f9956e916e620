"""transformers' own generate(), with its default attention implementation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Stepped, drive
from benchmarks.task import Task
from benchmarks.tuning import Tuning

QUANTIZED: dict[str, str] = {}


def tuning(environment: Path, cores: list[int]) -> Tuning:
    return Tuning({"OMP_NUM_THREADS": str(len(cores))})


class Transformers:
    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        self._torch = torch
        self._config = transformers.GenerationConfig
        self._stopping = transformers.StoppingCriteriaList
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype), local_files_only=True
        ).eval()
        # A model's own limits and end-of-sequence tokens would end answers early.
        self._model.generation_config = transformers.GenerationConfig()
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        never = self._torch.zeros(len(prompts), dtype=self._torch.bool)

        def after_each_token(ids: Any, scores: Any, **options: Any) -> Any:
            stepped(range(len(prompts)))
            return never

        whole: Any = self.generated(prompts, tokens, stopping_criteria=[after_each_token])
        return whole[:, len(prompts[0]) :].tolist()

    def generated(
        self, prompts: list[list[int]], tokens: int, stopping_criteria: Sequence[Any] = (), **options: Any
    ) -> Any:
        """The library's result: the prompts with their answers, unless `options` request other outputs."""
        ids = self._torch.tensor(prompts)
        config = self._config(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, **options)
        stopping = self._stopping(stopping_criteria)
        with self._torch.inference_mode():
            return self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=stopping,
                use_cache=True,
            )


if __name__ == "__main__":
    drive(Transformers)
