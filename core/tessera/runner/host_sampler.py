"""Core's reference sampler, for the logits that a platform's own model runner brings to the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import REFERENCE, LogprobsSpec, SampleSpec, SamplingRows
from tessera.ops.sampling import logprobs, sample
from tessera.platform.ops import HotCall
from tessera.platform.runner import HostSampled, InputBatch
from tessera.runner.input_batch import CoreInputBatch
from tessera.runner.logits_editor import LogitsEditor, PlacedMasks
from tessera.step import RowLogprobs, TokenMasks


def sample_on_host(
    logits: Tensor, batch: InputBatch, rows: Array, positions: Array, masks: TokenMasks | None = None
) -> HostSampled:
    """A HostSampler that uses the reference ops."""
    assert isinstance(batch, CoreInputBatch), "the batch that input_batch() made"
    host, columns = torch.as_tensor(logits), batch.sampling
    editor = LogitsEditor(columns, torch.from_numpy(batch.tokens), reference_call, torch.from_numpy)
    placed = PlacedMasks.place(masks, rows)
    names = (name for name in SamplingRows._fields if name != "position")
    parameters = {name: torch.from_numpy(getattr(columns, name)[rows]) for name in names}
    sampling = SamplingRows(**parameters, position=torch.from_numpy(positions.astype(np.int32)))
    vocab, wanted = host.shape[-1], columns.logprobs[rows]
    spec = SampleSpec(vocab, greedy=not columns.temperature[rows].any(), filters=True)
    tokens = editor.draw(partial(sample, spec), host, sampling, rows, positions, placed, keep=True)
    if wanted.max(initial=-1) < 0:
        return HostSampled(tokens.numpy(), [])
    scored = editor.score(logprobs(LogprobsSpec(vocab, int(wanted.max())), host, tokens), host, rows)
    ids, values, ranks = (part.numpy() for part in scored)
    row_logprobs = [
        RowLogprobs(row, ids[i : i + 1, : k + 1], values[i : i + 1, : k + 1], ranks[i : i + 1])
        for i, (row, k) in enumerate(zip(rows.tolist(), wanted.tolist(), strict=True))
        if k >= 0
    ]
    return HostSampled(tokens.numpy(), row_logprobs)


def reference_call(name: str, spec: Any) -> HotCall:
    """The reference of a plain op as a hot call."""
    call = REFERENCE[name].reference
    assert call is not None
    return partial(call, spec)
