"""All cases of a platform, by level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from tessera.errors import ConfigError
from tessera.testing.conformance.answers import model_cases, quantized_cases, scheduling_cases
from tessera.testing.conformance.attention import backend_cases, fused_cases, layout_cases
from tessera.testing.conformance.attention_kinds import attention_kind_cases
from tessera.testing.conformance.batch_invariance import invariance_cases
from tessera.testing.conformance.case import LEVELS, Case, Level, Result
from tessera.testing.conformance.cross_attention import cross_attention_cases
from tessera.testing.conformance.device import device_cases, read_cases
from tessera.testing.conformance.drafts import draft_cases
from tessera.testing.conformance.encoder_attention import encoder_attention_cases
from tessera.testing.conformance.latent import latent_attention_cases
from tessera.testing.conformance.launches import graph_cases, shape_cases
from tessera.testing.conformance.lora import lora_cases
from tessera.testing.conformance.masks import mask_cases
from tessera.testing.conformance.native import native_cases, perf_cases
from tessera.testing.conformance.ops import op_cases
from tessera.testing.conformance.overlap import overlap_cases
from tessera.testing.conformance.packed import packed_cases
from tessera.testing.conformance.ranks import rank_cases
from tessera.testing.conformance.schemes import scheme_cases
from tessera.testing.conformance.served import served_cases
from tessera.testing.conformance.sparse_attention import sparse_attention_cases
from tessera.testing.conformance.state import state_cases
from tessera.testing.conformance.target import Target

Suite = Callable[[Target], Iterator[Case]]
_SUITES: Sequence[tuple[Level, Sequence[Suite]]] = (
    ("bronze", (device_cases, op_cases)),
    ("silver", (
        backend_cases, fused_cases, layout_cases, attention_kind_cases, encoder_attention_cases,
        cross_attention_cases, latent_attention_cases, sparse_attention_cases, state_cases, scheme_cases, packed_cases,
    )),
    ("bronze", (model_cases,)),
    ("silver", (
        rank_cases, scheduling_cases, mask_cases, draft_cases, lora_cases, shape_cases, read_cases, overlap_cases,
        quantized_cases, invariance_cases,
    )),
    ("gold", (native_cases, graph_cases, served_cases, perf_cases)),
)  # fmt: skip
"""The parts of a model before models, so that the first failure is the closest to the mistake."""


def cases_of(target: Target, level: Level = "silver") -> list[Case]:
    """All cases of a level and the levels below it."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    return [case for one, suites in _SUITES if one in levels for suite in suites for case in suite(target)]


def tried(case: Case) -> Result:
    """Runs a case. It uses one host thread, because the tensors are so small that more threads would only wait for each
    other. A case that measures uses all threads."""
    if case.measures:
        return case.result()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return case.result()
    finally:
        torch.set_num_threads(threads)


def chosen(cases: list[Case], wanted: str) -> list[Case]:
    """The case with an id, or all cases below it ("op/linear"). Raises ConfigError if there is none."""
    found = [case for case in cases if case.id == wanted or case.id.startswith(f"{wanted}/")]
    if not found:
        kinds = ", ".join(dict.fromkeys(case.id.split("/")[0] for case in cases))
        raise ConfigError(f"there is no case '{wanted}'; ids begin with {kinds}, and --json lists them all.")
    return found


def conformance_cases(platform: str, level: Level = "silver", num_devices: int | None = None) -> list[Case]:
    """For pytest.mark.parametrize("case", conformance_cases("mychip"), ids=str), whose test calls case.run(). platform:
    a name or a dotted path. num_devices: how many to test collectives on; None: as many as the probe reports. Raises
    PlatformError."""
    return cases_of(Target.named(platform, num_devices), level)
