"""Adapters: each row is computed with its own, whatever its neighbours have (silver)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tessera.config.lora import SETTINGS, WEIGHTS, tensor_name
from tessera.errors import PlatformError
from tessera.lora import lora_args
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import PROJECTIONS, TinyAnswers, TinyRun, compare_answers, prompts_of

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
            run.add(prompt, _TOKENS, seed=0, feature_args=adapters[own[number]])
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


def _answer(run: TinyRun, prompt: Sequence[int], adapter: Mapping[str, str]) -> TinyAnswers:
    key = run.add(prompt, _TOKENS, seed=0, feature_args=adapter)
    run.finish()
    return TinyAnswers.from_run(run, key, key + 1)


def _adapters(run: TinyRun) -> list[dict[str, str]]:
    """The feature_args of none, and of two different ones."""
    return [{}, *(_adapter(run.folder, seed) for seed in range(2))]


def _adapter(model: Path, seed: int) -> dict[str, str]:
    targets = ("q_proj", "o_proj")
    folder = save_adapter(model, model / f"adapter{seed}", seed=seed, targets=targets, lora_alpha=16)
    return lora_args(str(folder))


def save_adapter(
    model: Path, folder: Path, *, seed: int, rank: int = 4, targets: Sequence[str] = PROJECTIONS, **settings: Any
) -> Path:
    """Writes a LoRA adapter with random weights in peft's format, which changes the answers of the model in a folder.
    targets: last parts of the names of its layers. settings: more of its configuration. Returns the folder."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                layer, _, kind = name.rpartition(".")
                if kind == "weight" and layer.rpartition(".")[2] in targets:
                    n, k = weights.get_slice(name).get_shape()
                    for half, shape in (("A", (rank, k)), ("B", (n, rank))):
                        tensors[tensor_name(layer, half)] = torch.randn(shape, generator=random) / math.sqrt(shape[1])
    save_file(tensors, folder / WEIGHTS)
    own = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    folder.joinpath(SETTINGS).write_text(json.dumps({**own, **settings}), encoding="utf-8")
    return folder
