"""Adapters: each row is computed with its own, whatever its neighbours have (silver)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tessera.errors import PlatformError
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import TinyAnswers, TinyRun, compare_answers, prompts_of, save_adapter

_LENGTHS, _TOKENS = (5, 19, 3, 8, 12), 8


def lora_cases(target: Target) -> Iterator[Case]:
    yield Case("lora/answers", "silver", "lora", partial(_answers, target))


def _answers(target: Target) -> Verdict:
    """Requests with two adapters and with none, together, then each alone; and each alone on the reference."""
    prompts, dtype = prompts_of(_LENGTHS), target.exact_dtype
    flags: dict[str, Any] = {
        "features": ["lora"],
        "enable_lora": True,
        "max_loras": 2,
        "steps_in_flight": 2,
        "enable_prefix_caching": False,
    }
    try:
        started = TinyRun(target, dtype, logprobs=0, **flags)
    except PlatformError as refused:
        if not target.brings_a_runner:
            raise
        return absent(refused.message)
    with started as run:
        adapters = _adapters(run)
        own = [number % len(adapters) for number in range(len(prompts))]

        def answer(number: int, adapter: int) -> TinyAnswers:
            return _answer(run, prompts[number], adapters[adapter])

        for number, prompt in enumerate(prompts):
            run.add(prompt, _TOKENS, seed=0, adapter=adapters[own[number]])
        run.finish()
        together = [TinyAnswers.from_run(run, number, number + 1) for number in range(len(prompts))]
        alone = [answer(number, own[number]) for number in range(len(prompts))]
        for number, found in enumerate(together):
            try:
                compare_answers(f"lora: beside other adapters than alone ({number})", found, alone[number], dtype)
            except ConformanceError as error:
                others = [other for other in range(len(adapters)) if other != own[number]]
                if any(answer(number, other).answers == found.answers for other in others):
                    raise ConformanceError(
                        f"lora: request {number} was computed with the adapter of another row"
                    ) from error
                raise
        if answer(1, 0).answers == alone[1].answers:
            raise ConformanceError("lora: an adapter changes nothing")
    with TinyRun(Target.named("reference"), dtype, logprobs=0, **flags) as reference:
        adapters = _adapters(reference)
        for number, found in enumerate(alone):
            expected = _answer(reference, prompts[number], adapters[own[number]])
            compare_answers(f"lora: beside the reference ({number})", found, expected, dtype)
    return PASSED


def _answer(run: TinyRun, prompt: Sequence[int], adapter: str) -> TinyAnswers:
    key = run.add(prompt, _TOKENS, seed=0, adapter=adapter)
    run.finish()
    return TinyAnswers.from_run(run, key, key + 1)


def _adapters(run: TinyRun) -> list[str]:
    """None, and two different ones."""
    return ["", *(_adapter(run.folder, seed) for seed in range(2))]


def _adapter(model: Path, seed: int) -> str:
    targets = ("q_proj", "o_proj")
    return str(save_adapter(model, model / f"adapter{seed}", seed=seed, targets=targets, lora_alpha=16))
