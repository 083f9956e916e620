"""Mistakes that change log probabilities a little, and tokens seldom, where an engine runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Device,
    Launch,
    LayerSpec,
)
from tessera.testing.attention import TRIAL
from tests.platforms.faulty.attention import _OneOrOther, _rows
from tests.platforms.faulty.fault import Kinds

CLOSENESS = Kinds("closeness")
model = CLOSENESS.model


class _Off(AttentionBackend):
    """Where _wrong() says so of a launch of an engine, its scores are `_off` times as large."""

    _off = 0.9
    _hit = False
    _seen: dict[Any, Any]

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        raise NotImplementedError

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        vars(self).setdefault("_seen", {})
        self._hit = group.name != TRIAL and self._wrong(launch, group)
        return super().plan(launch, group, buffers)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        right = super().bind(spec, weights, ops, device)
        off = super().bind(dataclasses.replace(spec, scale=spec.scale * self._off), weights, ops, device)
        return _OneOrOther(spec, weights, ops, lambda: off if self._hit else right)


class _Unseen(_Off):
    """A row begins behind tokens that it did not compute."""

    def _begun(self, launch: Launch, group: AttentionGroup) -> list[int]:
        """How many tokens each such row has found."""
        found = []
        for _, row, before, after in _rows(launch):
            if before > 0 and self._seen.get((group.name, row)) not in (before, after):
                found.append(before)
            self._seen[group.name, row] = after
        return found


@model("prefix", "prefix")
class PrefixHitOff(_Unseen):
    """scores of a prompt that begins behind a prefix hit are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return bool(self._begun(launch, group))


@model("prefix", "prefix")
class PrefixHitLarge(_Unseen):
    """scores of a prompt that begins behind a prefix hit are 3% too large"""

    _off = 1.03

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return bool(self._begun(launch, group))


def _sharing(launch: Launch, group: AttentionGroup) -> bool:
    first = [int(block) for block in launch.block_tables[group.number][: launch.num_rows, 0]]
    return len(set(first)) < len(first)


@model("block copy", "forks")
class SharedBlocksOff(_Off):
    """scores of rows that share their first block are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return _sharing(launch, group)


@model("block copy", "forks")
class SharedBlocksLarge(_Off):
    """scores of rows that share their first block are 5% too large"""

    _off = 1.05

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return _sharing(launch, group)


@model("preemption", "preemption")
class RestartedOff(_Off):
    """scores of a prompt that is computed with what was drawn before a preemption are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        low = [after for _, row, before, after in _rows(launch) if before == 0 and row >= 4]
        return any(length > 17 for length in low)


@model("preemption", "preemption")
class ManyRowsOff(_Off):
    """scores of a launch of six rows are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return launch.num_rows == 6


@model("model", "model")
class DecodeOff(_Off):
    """scores of a launch of a single row that decodes are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return launch.num_rows == launch.num_tokens


@model("model", "model")
class LongDecodeOff(_Off):
    """scores of a row that decodes behind 90 tokens are 5% too large"""

    _off = 1.05

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return launch.num_rows == launch.num_tokens and int(launch.seq_lens[: launch.num_rows].max()) > 90


@model("drafts", "drafts")
class DraftsOff(_Off):
    """scores of a launch that verifies drafts are 5% too small"""

    _off = 0.95

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return launch.key.kind == "verify"


@model("lora", "lora")
class AdaptersOff(_Off):
    """scores of a launch with adapters are a tenth too small"""

    def _wrong(self, launch: Launch, group: AttentionGroup) -> bool:
        return "lora" in launch.key.bits
