"""Which tokens of the cache a step changed: those that it computed, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tessera.platform.attention import Plane
from tessera.platform.runner import CacheGroup, ModelRunner
from tessera.runner.runner import CoreRunner
from tessera.step import SchedulerOutput
from tessera.testing.conformance.case import ConformanceError

_FREE = 0x5A  # in every byte


class CacheGuard:
    """An observer of steps at op depth, of an engine without prefix caching: what no row holds is filled anew before
    each step. Raises ConformanceError in the step that wrote elsewhere; the null block takes what padding writes."""

    def __init__(self) -> None:
        self.steps = 0

    @contextmanager
    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> Iterator[None]:
        assert isinstance(runner, CoreRunner)
        if step is None:
            yield
            return
        for number, group in enumerate(runner.plan.groups):
            if group.kind != "state":
                _fill_free(runner, number, group)
        before = [_bytes(buffer) for buffer in runner.memory.buffers]
        yield
        runner.device.synchronize()
        self.steps += 1
        for number, group in enumerate(runner.plan.groups):
            if group.kind != "state":
                changed = before[number] != _bytes(runner.memory.buffers[number])
                _check(runner, group, changed, _granted(runner, number, group, step))


def _bytes(buffer: Tensor) -> Tensor:
    return buffer.detach().to("cpu", copy=True)


def _fill_free(runner: CoreRunner, number: int, group: CacheGroup) -> None:
    """So that whoever writes there is seen, though he may write the same each time."""
    held = torch.zeros(group.num_blocks, dtype=torch.bool)
    held[torch.from_numpy(runner.batch.tables[number].astype("int64")).flatten()] = True
    free = (~held).nonzero()[:, 0].to(runner.device.target)
    runner.memory.buffers[number][free] = _FREE


def _granted(runner: CoreRunner, number: int, group: CacheGroup, step: SchedulerOutput) -> Tensor:
    """[blocks, tokens of one] that the step may write."""
    may = torch.zeros(group.num_blocks, group.block_size, dtype=torch.bool)
    may[0] = True
    for copy in step.copies:
        if copy.group == number:
            may[torch.from_numpy(copy.targets.astype("int64"))] = True
    for row, start, tokens in zip(step.rows, step.starts, step.num_scheduled_tokens, strict=True):
        for position in range(start, start + tokens):
            may[int(runner.batch.tables[number][row, position // group.block_size]), position % group.block_size] = True
    return may


def _check(runner: CoreRunner, group: CacheGroup, changed: Tensor, may: Tensor) -> None:
    for layer in group.layers:
        start = runner.memory.starts[layer]
        for plane in runner.memory.layouts[layer].planes:
            wrong = _by_token(plane, changed[:, start : start + plane.nbytes], group.block_size) & ~may
            start += plane.nbytes
            if wrong.any():
                block, token = wrong.nonzero()[0].tolist()
                raise ConformanceError(
                    f"a step changed {plane.name!r} of layer {layer} at token {token} of block {block}, where it "
                    "computes none: padding belongs into block 0",
                    {"wrong": wrong},
                )


def _by_token(plane: Plane, changed: Tensor, block_size: int) -> Tensor:
    """[blocks, bytes of a plane] -> [blocks, tokens]; a plane that does not say which axis its tokens are on counts
    as a whole."""
    width = plane.nbytes // max(torch.Size(plane.shape).numel(), 1)
    whole = changed.view(len(changed), *plane.shape, width)
    axes = [place for place, (name, _) in enumerate(plane.axes) if name == "token"]
    if not axes:
        return changed.any(1, keepdim=True) & torch.zeros(1, block_size, dtype=torch.bool)
    by_token = whole.movedim([axis + 1 for axis in axes], list(range(1, len(axes) + 1)))
    return by_token.reshape(len(changed), block_size, -1).any(-1)
