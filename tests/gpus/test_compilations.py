"""Warm-up launches each kernel in all ways that requests cause, as Triton tells launches apart, so that none is
compiled while requests are served."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from triton.runtime.jit import JITFunction

from tessera.config.pooler import PoolingTask
from tessera.models.encoder import TYPE_BOUNDARY
from tessera.runner import runner
from tessera.testing.conformance.lora import save_adapter
from tessera_triton import TARGETS, Launcher
from tests.models.encoders.families import ENCODERS
from tests.platforms.engine_run import EngineRun
from tests.platforms.fake_gpu import Cuda
from tests.platforms.tiny_models import VOCAB
from tools.triton_launches import Recorder

pytestmark = pytest.mark.compiler

DRAWING = {"_take_best": 1, "_filter": 11}
"""Kernels that store sampled tokens, and which of their arguments they are stored in."""


class Noting(Launcher):
    """Notes launches, and computes nothing: sampled tokens are all 7."""

    recorder = Recorder(TARGETS["sm_90"])
    compilable: ClassVar[dict[Any, JITFunction[Any]]] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if kernel not in self.compilable:
            self.compilable[kernel] = JITFunction(kernel.fn, **kernel.kwargs)
        self.recorder(self.compilable[kernel], grid, *arguments, **options)
        if (place := DRAWING.get(kernel.fn.__name__)) is not None:
            arguments[place].fill_(7)


class Compiled(Cuda):
    """A GPU that would compile a kernel for each new kind of launch."""

    def _new_launcher(self) -> Launcher:
        return Noting()

    def compilations(self) -> int | None:
        return len(Noting.recorder.launches)


def parameters(draw: random.Random) -> dict[str, Any]:
    """Of a request: a few of all fields that change what is launched."""
    fields: list[dict[str, Any]] = [
        {"temperature": 1.0}, {"temperature": 0.7, "top_k": draw.randint(1, 40)}, {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.1}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.5},
        {"logprobs": draw.choice((0, 1, 2, 3, 5, 8, 13, 20))}, {"prompt_logprobs": draw.choice((0, 1, 4, 20))},
        {"logit_bias": dict.fromkeys(range(draw.choice((1, 3, 70))), 1.0)},
        {"allowed_token_ids": [7, 8, 9]}, {"bad_words_ids": [[3] * draw.randint(1, 6)]}, {"min_tokens": 1},
        {"logprobs": 2, "logprob_token_ids": [1, 7]},
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for chosen in draw.sample(fields, draw.choice((0, 1, 1, 2, 3))):
        found |= chosen
    return found


def serve(run: EngineRun, requests: int, draw: random.Random, adapter: str) -> None:
    """Requests that come while others run. Half of them begin as an earlier one did, and half have the adapter, if
    there is one."""
    known: list[list[int]] = [[5, 6, 7]]
    for _ in range(requests):
        prompt = list(draw.choice(known)) if draw.random() < 0.5 else []
        prompt = [*prompt, *(draw.randrange(1, VOCAB) for _ in range(draw.choice((1, 2, 3, 7, 16, 40))))][-240:]
        known.append(prompt)
        named = adapter if draw.random() < 0.5 else ""
        run.add(prompt, draw.randint(1, 5), seed=1, ignore_eos=True, adapter=named, **parameters(draw))
        for _ in range(draw.randint(0, 2)):
            run.step()
    run.finish()


@pytest.mark.parametrize(
    ("name", "requests", "flags"),
    [
        ("llama", 500, {}),
        ("llama", 100, {"enforce_eager": True}),
        ("llama", 100, {"quantization": "int8", "enable_lora": True, "max_loras": 2, "features": ["lora"]}),
        ("mixtral", 100, {"kv_cache_dtype": "int8"}),
        ("deepseek_v3", 100, {}),
        pytest.param("qwen3_5_text", 60, {}, marks=pytest.mark.nightly),
        pytest.param("nemotron_h", 60, {}, marks=pytest.mark.nightly),
    ],
    ids=["captured", "eager", "adapters", "experts", "latents", "delta net", "mamba2"],
)
def test_nothing_is_compiled_while_requests_are_served(
    family: Callable[[str], Path], chip: Any, tmp_path: Path, name: str, requests: int, flags: dict[str, Any]
) -> None:
    Noting.recorder.launches.clear()
    size = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256}
    adapter = str(save_adapter(family(name), tmp_path / "adapter", seed=1, rank=4)) if "enable_lora" in flags else ""
    with EngineRun(family(name), f"{__name__}:Compiled", depth=2, **{**size, **flags}) as run:
        ready = set(Noting.recorder.launches)
        assert ready
        serve(run, requests, random.Random(0), adapter)
        assert not [key for key in Noting.recorder.launches if key not in ready]
        assert run.engine.stats.compilations == 0


@pytest.mark.parametrize("name", ["bert", pytest.param("modernbert", marks=pytest.mark.nightly)])
def test_nothing_is_compiled_while_texts_are_embedded(chip: Any, tmp_path: Path, name: str) -> None:
    """Of one token up to the longest, one or some in a step, with second texts and without; and parts of them."""
    ENCODERS[name].save("Model", tmp_path)
    Noting.recorder.launches.clear()
    sizes: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 300, "max_model_len": 96}
    draw = random.Random(0)
    with EngineRun(tmp_path, f"{__name__}:Compiled", depth=2, **sizes) as run:
        ready = set(Noting.recorder.launches)
        assert ready
        for length in (1, 96, *(draw.choice((2, 7, 16, 33, 65, draw.randint(1, 96))) for _ in range(60))):
            columns = {TYPE_BOUNDARY.name: draw.randint(0, length)} if draw.random() < 0.3 else None
            task: PoolingTask = draw.choice(("embed", "token_embed"))
            run.pool([5] * length, task, columns=columns if name == "bert" else None)
            for _ in range(draw.randint(0, 1)):
                run.step()
        run.finish()
        assert not [key for key in Noting.recorder.launches if key not in ready]
        assert run.engine.stats.compilations == 0


def test_a_kernel_that_warm_up_missed_is_counted(
    family: Callable[[str], Path], chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "steps_of_all_kinds", lambda *sizes: [])
    Noting.recorder.launches.clear()
    with EngineRun(family("llama"), f"{__name__}:Compiled") as run:
        ready = len(Noting.recorder.launches)
        run.ask([[5, 6, 7]], 3, temperature=1.0, top_k=3)
        assert run.engine.stats.compilations == len(Noting.recorder.launches) - ready > 0
