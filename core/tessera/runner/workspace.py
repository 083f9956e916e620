"""The memory that steps take beside weights and the KV cache. It is measured at the first start, by running the largest
steps, and remembered. A device that cannot measure it gets an estimate."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import torch

from tessera.arrays import Array, int32
from tessera.config import EngineConfig
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device
from tessera.platform.launch import StepRules
from tessera.platform.model import ModelFacts
from tessera.platform.runner import CachePlan
from tessera.pooling_params import RequestPooling
from tessera.sampling_params import SamplingParams
from tessera.step import BlockDelta, RowOpened, SchedulerOutput

log = logging.getLogger("tessera.workspace")

SAMPLED = SamplingParams(temperature=1.0, top_k=10, top_p=0.9, min_p=0.1)
"""With what takes most."""


def estimated(config: EngineConfig, facts: ModelFacts) -> int:
    """An estimate, on the high side, of the bytes of a step's tensors: 16 float32 vectors of the hidden size per token,
    and the float32 logits of all samples twice."""
    tokens, samples = config.scheduler.max_num_batched_tokens, config.scheduler.max_decode_samples
    return tokens * facts.hidden_size * 16 * 4 + samples * facts.vocab_size * 8


def largest_steps(
    config: EngineConfig, plan: CachePlan, rules: StepRules, pooling: RequestPooling | None
) -> list[SchedulerOutput]:
    """Steps of as many tokens as a step may have: prompts as long as possible; rows that decode, with drafts; and, if
    they may be mixed, as many rows as possible and one prompt, which takes most where rows are padded to the longest.
    plan: of null blocks alone, to which all tables point. pooling: that takes most, if the model pools."""
    longest, most = plan.max_model_len - 1, config.scheduler.max_num_batched_tokens
    each = min(longest, rules.max_tokens_per_request or longest, most)
    rows = min(plan.num_rows, rules.max_rows or most)
    prompts = np.full(min(-(-most // each), rules.max_prefill_rows or most, rows), each, np.int32)
    prompts[-1] = min(each, most - each * (len(prompts) - 1))
    width = min(config.scheduler.max_decode_tokens, longest)
    answers = np.full(min(rows, max(most // width, 1)), width, np.int32)
    steps = []
    if pooling is not None:
        steps.append(null_step(plan, 0, np.zeros_like(prompts), prompts, SAMPLED, pooling=pooling))
    if not config.model.generates:
        return steps
    steps.append(null_step(plan, 0, np.zeros_like(prompts), prompts, SAMPLED))
    steps.append(null_step(plan, 1, longest - answers, answers, SAMPLED, width - 1))
    rest = min(each, most - (rows - 1))
    if rules.mix_prefill_decode and rows > 1 and rest > 1:
        mixed = np.ones(rows, np.int32)
        mixed[-1] = rest
        steps.append(null_step(plan, 2, longest - mixed, mixed, SAMPLED))
    return steps


def null_step(
    plan: CachePlan,
    number: int,
    starts: Array,
    counts: Array,
    params: SamplingParams,
    drafts: int = 0,
    pooling: RequestPooling | None = None,
) -> SchedulerOutput:
    """A step of the first rows, opened with these parameters, whose block tables name the null block alone. drafts: of
    each row. pooling: of each, if they are pooled and not sampled."""
    rows, none = np.arange(len(starts), dtype=np.int32), int32()
    opened = [
        RowOpened(row, "", np.zeros(end, np.int32), end, start, params, row, pooling=pooling)
        for row, (start, end) in enumerate(zip(starts.tolist(), (starts + counts).tolist(), strict=True))
    ]
    nothing = [BlockDelta(none, none, none, none) for _ in plan.groups]
    return SchedulerOutput(
        number, -1, rows, starts, counts, rows, nothing, opened, drafts=np.zeros(drafts * len(rows), np.int32)
    )


def remembered_or(
    measure: Callable[[], int | None], config: EngineConfig, device: Device, groups: Mapping[str, Communicator]
) -> int | None:
    """The bytes that an earlier start measured, if every worker remembers them, since all must take part in measuring;
    else what measure() gives. None: the device cannot measure."""
    key = _key(config, device, groups)
    known = _number(device.artifacts.get(key))
    agreed = known is not None
    for group in groups.values():
        agreed = _everywhere(agreed, group, device)
    measured = known if agreed else measure()
    if measured is not None and not agreed:
        log.info("a step takes %.2f GiB beside weights and KV cache (measured)", measured / 2**30)
        device.artifacts.put(key, str(measured).encode())
    return measured


def _everywhere(here: bool, group: Communicator, device: Device) -> bool:
    """Whether it holds in all workers of the group."""
    if isinstance(group, Alone):
        return here
    votes = group.all_reduce(torch.tensor([float(here)], device=device.target))
    return int(device.to_host(votes).result()[0]) == group.size


def _key(config: EngineConfig, device: Device, groups: Mapping[str, Communicator]) -> str:
    """All that the figure may depend on beyond versions and devices: configuration, and this worker's place."""
    same = dataclasses.replace(config, folder="", log_format="", explicit_fields=frozenset(), embedded=False)
    said = [
        "workspace",
        msgspec.to_builtins(same, str_keys=True),
        [str(device.target), device.memory().total],
        {name: [group.rank, group.size] for name, group in groups.items()},
    ]
    return json.dumps(said, sort_keys=True)


def _number(artifact: bytes | None) -> int | None:
    """None also for what is no number, which another version may have left."""
    return int(artifact) if artifact is not None and artifact.isdigit() else None
