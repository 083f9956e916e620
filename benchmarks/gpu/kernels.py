"""Measurements of the card itself, and of attention alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.gpu.arithmetic import Step, busy_share, many_lengths
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import ITEM, attention_flops
from benchmarks.gpu.setting import Setting

COPIED = 4 << 30  # bytes, far larger than any cache
SIDE = 8192


def limits(setting: Setting) -> Iterator[Figure]:
    """What the card does at its best: a copy, and a product of two large matrices, of random numbers since zeros are
    faster."""
    source = torch.zeros(setting.scale(COPIED, 1 << 20), dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    yield Figure("copy", 2 * len(source) / setting.seconds(partial(target.copy_, source)) / 1e9, "GB/s")
    side = setting.scale(SIDE, 64)
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=setting.device) for _ in range(2))
    out = torch.empty_like(a)
    yield Figure("gemm", 2 * side**3 / setting.seconds(lambda: torch.mm(a, b, out=out)) / 1e12, "TFLOP/s")
    if setting.device.type != "cpu":
        card = torch.get_device_module(setting.device).get_device_properties(setting.device)
        yield Figure("card", card.total_memory / 1e9, f"GB, {card.name}")


def attention(setting: Setting) -> Iterator[Figure]:
    """One layer of the 8B shape, alone: decode beside the copy, and both kinds beside torch's attention over dense keys
    and values."""
    sizes = setting.large
    key_bytes = 2 * ITEM * sizes["num_key_value_heads"] * sizes["head_dim"]
    for name, rows, context, goal in (
        ("rows", setting.scale(16, 2), setting.scale(8192, 40), 0.90),
        ("long", 1, setting.scale(131_072, 64), 0.90),
    ):
        ours = _ours(setting, ((1, context),) * rows)
        read = rows * context * key_bytes
        yield Figure(f"attention_{name}_of_copy", read / ours / setting.copy, "", goal)
        theirs = setting.seconds(_torchs(setting, rows, 1, context))
        yield Figure(f"attention_{name}_of_sdpa", theirs / ours, "", 0.80)
    rows, prompt = setting.scale(4, 1), setting.scale(4096, 33)
    ours, theirs = _ours(setting, ((prompt, prompt),) * rows), setting.seconds(_torchs(setting, rows, prompt, prompt))
    yield Figure("attention_prefill_rate", rows * attention_flops(sizes, prompt) / ours / 1e12, "TFLOP/s")
    yield Figure("attention_prefill_of_sdpa", theirs / ours, "", 0.80)


def _ours(setting: Setting, rows: tuple[tuple[int, int], ...]) -> float:
    """Seconds of a call of the platform's first attention backend that takes the layer, or of core's reference. rows:
    tokens to compute, and tokens in the cache afterwards."""
    from tessera.reference.attention import ReferenceAttention
    from tessera.testing.attention import AttentionCase, AttentionTrial
    from tessera.testing.conformance import Target

    target = Target.named(setting.platform, shared=False)
    sizes = setting.large
    case = AttentionCase(
        rows, heads=sizes["num_attention_heads"], kv_heads=sizes["num_key_value_heads"], head_dim=sizes["head_dim"],
        dtype="bfloat16",
    )  # fmt: skip
    backends = (*target.backends, ReferenceAttention())
    backend = next(one for one in backends if one.supports(case.spec()) is None)
    case = replace(case, block_size=backend.constraints(case.spec()).block_sizes[0])
    indices = target.platform.capabilities.index_dtype
    trial = AttentionTrial(backend, case, index_dtype=indices, ops=target.bound())
    trial.run()
    held, launch, starts = next(trial.launches(trial.grants))
    q = trial.laid(launch, starts, [trial.queries[row][:tokens] for tokens, _, row in held])
    with torch.inference_mode():
        return setting.seconds(partial(trial.layer.attend, q, trial.caches, launch.plans[0]), target.device.synchronize)


def _torchs(setting: Setting, rows: int, queries: int, keys: int) -> Callable[[], object]:
    sizes = setting.large

    def heads(number: int, tokens: int) -> torch.Tensor:
        return torch.randn(rows, number, tokens, sizes["head_dim"], dtype=torch.bfloat16, device=setting.device)

    q = heads(sizes["num_attention_heads"], queries)
    k, v = (heads(sizes["num_key_value_heads"], keys) for _ in range(2))
    causal = queries > 1
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def busy(setting: Setting) -> Iterator[Figure]:
    """The share of the time in which the card runs something while many rows of a small model decode, where the host
    has the least time to prepare each step. On the host, torch's own ops are watched instead."""
    rows, steps = setting.scale(256, 3), setting.scale(200, 4)
    answer = setting.scale(steps + 200, 12)
    engine = setting.engine(setting.small, rows=rows, tokens=setting.scale(2048, 48))
    prompts, _ = many_lengths(rows, *((8, 16) if setting.tiny else (100, 1024)))
    engine.run(engine.prompts([8] * rows, seed=99), [setting.scale(16, 2)] * rows)
    plain = engine.run(engine.prompts(prompts), [answer] * rows)
    yield Figure("busy_step", 1000 * rows / plain.decode, "ms")
    watched = Watched(setting, rows, steps)
    engine.run(engine.prompts(prompts, seed=1), [answer] * rows, watched)
    yield Figure("busy_share", busy_share(watched.intervals), "", 0.97)
    yield Figure("busy_step_watched", watched.step_ms, "ms")
    engine.close()


def profiler(setting: Setting) -> Any:
    """torch's, of the card alone; its methods have no types."""
    from torch.profiler import ProfilerActivity, profile

    kinds = {"cpu": ProfilerActivity.CPU, "xpu": ProfilerActivity.XPU}
    return profile(activities=[kinds.get(setting.device.type, ProfilerActivity.CUDA)])


class Watched:
    """Records what runs on the device during so many steps, from the third on in which all rows decode."""

    def __init__(self, setting: Setting, rows: int, steps: int) -> None:
        self._synchronize = setting.synchronize
        self._on_host = setting.device.type == "cpu"
        self._profile = profiler(setting)
        self._rows, self._steps = rows, steps
        self._full = 0
        self._began = 0.0
        self.intervals: list[tuple[float, float]] = []
        self.step_ms = 0.0

    def __call__(self, steps: Sequence[Step]) -> None:
        if len(steps[-1].keys) == self._rows:
            self._full += 1
        if self._full == 3 and not self._began:
            self._synchronize()  # what still ran would count, and then the time that the profiler takes to start
            self._profile.__enter__()
            self._began, self._first = time.perf_counter(), len(steps)
        elif self._began and not self.intervals and len(steps) - self._first == self._steps:
            self._profile.__exit__(None, None, None)
            self.step_ms = 1000 * (steps[-1].at - self._began) / self._steps
            self.intervals = list(self._device_intervals())

    def _device_intervals(self) -> Iterator[tuple[float, float]]:
        """Start and end, in microseconds, of what ran on the device, copies included."""
        for event in self._profile.events():
            if (event.device_type.name == "CPU") == self._on_host and not event.is_user_annotation:
                yield event.time_range.start, event.time_range.end
