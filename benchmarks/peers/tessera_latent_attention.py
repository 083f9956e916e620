"""Tessera's latent attention on the CPU platform."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from benchmarks.attention_task import ATTENTION_SEED, LatentTask, copies, drive

from tessera_cpu import native
from tessera_cpu.allocator import settle_memory

BLOCK = 16  # tokens


def prepare(task: LatentTask) -> Sequence[Callable[[], object]]:
    library = native.library()
    native.use_threads(library, task.threads)
    settle_memory(2 * copies(task) * task.nbytes)  # as the platform does in its own process
    torch.manual_seed(ATTENTION_SEED)
    return [_on_one_cache(library, task) for _ in range(copies(task))]


def _on_one_cache(library: object, task: LatentTask) -> Callable[[], object]:
    blocks = -(-task.context // BLOCK)
    number = 1 + task.batch * blocks
    latents = torch.randn(number, BLOCK, task.rank + task.rope, dtype=torch.bfloat16)
    up = torch.randn(task.heads, task.nope + task.value, task.rank, dtype=torch.bfloat16) * task.rank**-0.5
    q = torch.randn(task.batch, task.heads * (task.nope + task.rope), dtype=torch.bfloat16)
    out = torch.empty(task.batch, task.heads * task.value, dtype=torch.bfloat16)
    tables = (1 + torch.randperm(number - 1)).view(task.batch, blocks).to(torch.int32)
    start, length = torch.arange(task.batch, dtype=torch.int32), torch.ones(task.batch, dtype=torch.int32)
    held = torch.full((task.batch,), task.context, dtype=torch.int32)
    layer = native.LatentLayer(
        latents=latents.data_ptr(),
        block_stride=latents.stride(0),
        block_size=BLOCK,
        rank=task.rank,
        rope=task.rope,
        heads=task.heads,
        nope=task.nope,
        value=task.value,
        up=up.data_ptr(),
        scale=(task.nope + task.rope) ** -0.5,
        number=native.BF16_ENTRY,
    )
    launch = native.Launch(
        tables=tables.data_ptr(),
        start=start.data_ptr(),
        length=length.data_ptr(),
        seq_lens=held.data_ptr(),
        table_stride=blocks,
        rows=task.batch,
        tokens=task.batch,
    )
    attention = native.LatentAttention(
        launch=ctypes.addressof(launch), q=q.data_ptr(), q_stride=q.stride(0), out=out.data_ptr()
    )
    kept = latents, up, q, out, tables, start, length, held, launch

    def call(_: object = kept) -> None:
        library.tessera_cpu_latent_attention(layer, attention)

    return call


if __name__ == "__main__":
    drive(LatentTask, prepare)
