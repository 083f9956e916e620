"""transformers' generate, and its continuous batching, on the same card, beside Tessera."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.setting import Setting

KV_BYTES = 8 << 30
"""Of Tessera's cache, so that both models fit."""


def transformers(setting: Setting) -> Iterator[Figure]:
    """The 0.6B shape, equal prompts and answers, tokens per second of the whole call; the ratios are how many times as
    fast Tessera is. transformers' kernels are those that need no download."""
    prompt, answer = setting.scale(128, 8), setting.scale(64, 4)
    batches = (1, 2) if setting.tiny else (1, 32, 256)
    room = {} if setting.tiny else {"kv_cache_memory_bytes": KV_BYTES}
    engine = setting.engine(setting.small, rows=max(batches), tokens=prompt + answer + 8, **room)
    ours = {}
    for batch in batches:
        engine.run(engine.prompts([prompt] * batch, seed=99), [setting.scale(answer, 2)] * batch)
        ours[batch] = engine.run(engine.prompts([prompt] * batch), [answer] * batch).whole
    engine.close()
    model = _model(setting)
    for batch in batches:
        _generated(setting, model, batch, prompt, setting.scale(8, 2))
        theirs = batch * answer / _generated(setting, model, batch, prompt, answer)
        yield Figure(f"transformers_{batch}_ours", ours[batch], "tok/s")
        yield Figure(f"transformers_{batch}_theirs", theirs, "tok/s")
        yield Figure(f"transformers_{batch}_ratio", ours[batch] / theirs, "")
        theirs = batch * answer / _batched(setting, model, batch, prompt, answer)
        yield Figure(f"transformers_{batch}_batching", theirs, "tok/s")
        yield Figure(f"transformers_{batch}_batching_ratio", ours[batch] / theirs, "")


def _model(setting: Setting) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(setting.folder(setting.small))
    with setting.device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@torch.inference_mode()
def _generated(setting: Setting, model: Any, batch: int, prompt: int, answer: int) -> float:
    """Seconds."""
    ids = torch.randint(2, model.config.vocab_size, (batch, prompt), device=setting.device)
    setting.synchronize()
    began = time.perf_counter()
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), min_new_tokens=answer, max_new_tokens=answer, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    setting.synchronize()
    assert found.shape == (batch, prompt + answer)
    return time.perf_counter() - began


def _batched(setting: Setting, model: Any, batch: int, prompt: int, answer: int) -> float:
    """Seconds of the second of two calls, for which graphs were captured in the first."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    params = GenerationConfig(do_sample=False, max_new_tokens=answer, eos_token_id=-1)
    sizes = ContinuousBatchingConfig(**({"num_blocks": 16, "max_batch_tokens": 64} if setting.tiny else {}))
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(2, model.config.vocab_size, (batch, prompt), generator=random).tolist()
    seconds = 0.0
    for _ in range(2):
        setting.synchronize()
        began = time.perf_counter()
        found = model.generate_batch(
            ids, generation_config=params, continuous_batching_config=sizes, persistent_manager=True
        )
        seconds = time.perf_counter() - began
        assert [len(one.generated_tokens) for one in found.values()] == [answer] * batch
    model.destroy_cached_continuous_batching_manager()
    return seconds
