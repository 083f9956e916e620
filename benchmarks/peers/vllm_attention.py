"""vLLM's paged attention on the CPU, called as its backend calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from benchmarks.attention_task import ATTENTION_SEED, AttentionTask, copies, drive
from vllm.platforms import current_platform

TOKENS = 128  # per block, its default on a CPU


def prepare(task: AttentionTask) -> Sequence[Callable[[], object]]:
    current_platform.import_kernels()
    torch.set_num_threads(task.threads)
    torch.manual_seed(ATTENTION_SEED)
    return [_on_one_cache(task) for _ in range(copies(task))]


def _on_one_cache(task: AttentionTask) -> Callable[[], object]:
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    blocks = -(-task.context // TOKENS)
    number = 1 + task.batch * blocks
    cache = torch.randn(number, task.kv_heads, 2 * TOKENS, task.dim, dtype=torch.bfloat16)
    keys, values = cache.chunk(2, dim=2)
    q = torch.randn(task.batch, task.heads, task.dim, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    tables = (1 + torch.randperm(number - 1)).view(task.batch, blocks).to(torch.int32)
    starts = torch.arange(task.batch + 1, dtype=torch.int32)
    held = torch.full((task.batch,), task.context, dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=task.batch,
        num_heads=task.heads,
        num_kv_heads=task.kv_heads,
        head_dim=task.dim,
        seq_lens=held,
        dtype=torch.bfloat16,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=_get_attn_isa(torch.bfloat16, TOKENS, task.dim, "auto"),
        enable_kv_split=True,
    )

    def call() -> None:
        ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=starts,
            seq_lens=held,
            scale=task.dim**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=tables,
            softcap=0.0,
            scheduler_metadata=plan,
            s_aux=None,
        )

    return call


if __name__ == "__main__":
    drive(AttentionTask, prepare)
