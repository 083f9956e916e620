"""Device tensors that keep their addresses, for the inputs of launches and of sampling."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.config.engine import SchedulerConfig
from tessera.ops import SamplingRows
from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Device
from tessera.platform.launch import LaunchKey
from tessera.platform.runner import CachePlan


class DeviceBuffers:
    """Device tensors by name that keep their addresses. sizes: number of elements for the names whose shapes vary from
    launch to launch; each of their shapes is a view of the start of one tensor. Any other name has one tensor for each
    number of elements."""

    def __init__(self, device: Device, sizes: dict[str, int] | None = None) -> None:
        self.device, self.sizes = device, sizes or {}
        self._flat: dict[tuple[str, str, int], Tensor] = {}
        self._newest: dict[str, tuple[Sequence[int], str, Tensor]] = {}

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        newest = self._newest.get(name)
        if newest is None or newest[0] != shape or newest[1] != dtype:
            newest = self._newest[name] = (shape, dtype, self._view(name, shape, dtype))
        return newest[2]

    def _view(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        number = prod(shape)
        size = self.sizes.get(name, number)
        assert number <= size, (name, shape, size)
        flat = self._flat.get((name, dtype, size))
        if flat is None:
            flat = torch.empty(size, dtype=torch_dtype(dtype), device=self.device.target)
            self._flat[name, dtype, size] = flat
        return flat[:number].view(*shape)

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        host = np.ascontiguousarray(values)
        placed: Tensor = self.device.to_device(host, self.get(name, host.shape, dtype))
        return placed


def buffer_sizes(
    rows: int, tokens: int, samples: int, plan: CachePlan, columns: Iterable[str], token_columns: Collection[str] = ()
) -> dict[str, int]:
    """Number of elements of each buffer for the largest launch and its sampling. columns: names of the features'
    columns. token_columns: those of them that a launch has for each token."""
    sizes = dict.fromkeys(("positions", "token_at", "tokens"), tokens)
    sizes |= dict.fromkeys(("rows", "query_lens", "seq_lens"), rows)
    sizes |= dict.fromkeys(("feed", "sampled_rows", "drafts", "draft_at"), samples)
    sizes["query_start_loc"] = rows + 1
    sizes["logits_indices"] = rows + tokens
    sizes |= dict.fromkeys((f"sampling_{name}" for name in SamplingRows._fields), samples)
    sizes["sampling_seed"] = 2 * samples
    for name in columns:
        if name in token_columns:
            sizes[f"column_{name}"] = tokens
        else:
            sizes |= {f"column_{name}": rows, f"sampled_column_{name}": samples}
    for number, group in enumerate(plan.groups):
        sizes[f"slot_mapping{number}"] = rows * group.length if group.kind == "cross" else tokens
        sizes[f"tables{number}"] = rows * group.blocks_of(plan.max_model_len)
    return sizes


def largest_launch(keys: Sequence[LaunchKey], config: SchedulerConfig) -> tuple[int, int, int]:
    """Rows, tokens and samples of the largest launch: the most that the scheduler may schedule, or that a bounded
    ShapePolicy pads to."""
    rows, tokens, samples = config.max_num_seqs, config.max_num_batched_tokens, config.max_decode_samples
    return (
        max([rows, *(key.rows for key in keys)]),
        max([tokens, *(key.tokens for key in keys)]),
        max([samples, *(key.num_samples for key in keys)]),
    )
