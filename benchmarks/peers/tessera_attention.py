"""Tessera's paged attention on the CPU platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from benchmarks.attention_task import ATTENTION_SEED, AttentionTask, copies, drive

from tessera_cpu import native
from tessera_cpu.allocator import settle_memory
from tessera_cpu.paged import BLOCK


def prepare(task: AttentionTask) -> Sequence[Callable[[], object]]:
    library = native.library()
    native.use_threads(library, task.threads)
    settle_memory(2 * copies(task) * task.nbytes)  # as the platform does in its own process
    torch.manual_seed(ATTENTION_SEED)
    return [_on_one_cache(library, task) for _ in range(copies(task))]


def _on_one_cache(library: object, task: AttentionTask) -> Callable[[], object]:
    blocks = -(-task.context // BLOCK)
    number = 1 + task.batch * blocks
    keys, values = (torch.randn(number, task.kv_heads * BLOCK * task.dim, dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(task.batch, task.heads, task.dim, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    tables = (1 + torch.randperm(number - 1)).view(task.batch, blocks).to(torch.int32)
    start, length = torch.arange(task.batch, dtype=torch.int32), torch.ones(task.batch, dtype=torch.int32)
    held = torch.full((task.batch,), task.context, dtype=torch.int32)
    places = {"keys": keys.data_ptr(), "values": values.data_ptr()}
    strides = {"key_stride": keys.stride(0), "value_stride": values.stride(0)}
    cache = native.CacheBytes(**places, **strides, block_size=BLOCK, kv_heads=task.kv_heads, dim=task.dim)
    layer = native.Layer(cache, task.heads, scale=task.dim**-0.5)
    launch = native.Launch(
        tables=tables.data_ptr(),
        start=start.data_ptr(),
        length=length.data_ptr(),
        seq_lens=held.data_ptr(),
        table_stride=blocks,
        rows=task.batch,
        tokens=task.batch,
    )
    kept = keys, values, tables, start, length, held

    def call(_: object = kept) -> None:
        library.tessera_cpu_attention(layer, launch, q.data_ptr(), out.data_ptr())

    return call


if __name__ == "__main__":
    drive(AttentionTask, prepare)
