"""Runs decode steps, and short steps of encoders, as one native call: the calls of a step are recorded once, for the
maximum number of rows, and replayed for the actual number. A replay runs no Python and allocates nothing."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.platform import ALL_POSITIONS, Buffers, GraphRunner, Launch, LaunchKey, ShapePolicy
from tessera_cpu.encoder import EncoderPlan
from tessera_cpu.paged import PagedPlan
from tessera_cpu.state import StatePlan

log = logging.getLogger("tessera.cpu")

MAX_ROWS, MAX_TOKENS = 64, 512
"""The most rows of a tape: of those that decode, and of an encoder's tokens. In larger steps the cost of Python is
negligible, but the memory for results is not."""

ALIGNED = 64
_PLANS = PagedPlan, EncoderPlan, StatePlan
"""Those that native calls read. A recorded step calls no layer that has another one."""
NO_STEP = LaunchKey("decode", 0, 1, 1, 0)
"""Smaller than any step."""


class TapeRunner(GraphRunner):
    """One tape for all decode steps of up to MAX_ROWS rows, or for an encoder's steps of up to MAX_TOKENS tokens, if
    the model's forward pass is entirely native. Other steps, and other models, run op by op."""

    def __init__(self, library: Any) -> None:
        self.library, self.encodes, self.widest = library, False, NO_STEP

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        return self._recording(min(rows, MAX_ROWS))

    def encoder_keys(self, shapes: ShapePolicy, tokens: int) -> Sequence[LaunchKey]:
        """An encoder's tape computes the states of all tokens, as if each were a row that samples. Only attention knows
        of the rows, whose lengths it reads when it runs."""
        self.encodes = True
        return self._recording(min(tokens, MAX_TOKENS))

    def _recording(self, rows: int) -> Sequence[LaunchKey]:
        self.widest = LaunchKey("decode", rows, 1, 1, rows)
        return (self.widest,)

    def key_of(self, key: LaunchKey) -> LaunchKey:
        fits = key.tokens <= self.widest.tokens
        if self.encodes:  # features may read rows, which are not those that were recorded
            return self.widest if fits and not key.bits - {ALL_POSITIONS} else key
        return replace(self.widest, bits=key.bits) if fits and key.samples_all else key

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        if self.encodes and key.bits:
            return forward
        recorded = self._record(key, forward, launch)
        if recorded is None and self.encodes:
            self.widest = NO_STEP  # plans for steps that are not replayed need no addresses that stay
        return forward if recorded is None else recorded

    def _record(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch) -> Recorded | None:
        """None if it is not entirely native, with the reason in the log."""
        tape = Tape(self.library, key.rows)
        try:
            with tape:
                result = forward(launch)
        except NotNativeError as reason:
            log.info("all steps run op by op: %s", reason)
            return None
        if not tape.whole:
            log.info("all steps run op by op: not all calls are of all rows")
            return None
        return Recorded(tape, result, launch)

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)


class Recorded:
    """result: what the forward returned, one tensor or several, with a row for each token. launch: the recorded launch,
    to whose plans the tape points."""

    def __init__(self, tape: Tape, result: Tensor | tuple[Tensor, ...], launch: Launch) -> None:
        self.tape, self.result, self.tokens = tape, result, launch.tokens.data_ptr()
        self.plans: dict[int, PagedPlan | EncoderPlan | StatePlan] = {}  # by the first layer that uses it
        for layer, plan in enumerate(launch.plans):
            if isinstance(plan, _PLANS) and not any(plan is other for other in self.plans.values()):
                self.plans[layer] = plan

    def __call__(self, launch: Launch) -> Tensor | tuple[Tensor, ...]:
        assert launch.tokens.data_ptr() == self.tokens
        for layer, recorded in self.plans.items():
            ctypes.pointer(recorded.launch)[0] = launch.plans[layer].launch
        tokens = launch.key.tokens
        self.tape.replay(tokens)
        if isinstance(self.result, tuple):
            return tuple(launch.select_logits(one[:tokens]) for one in self.result)
        return launch.select_logits(self.result[:tokens])


class NotNativeError(Exception):
    """Raised for an operation that a tape cannot replay."""


class Tape(TorchDispatchMode):
    """While active, native calls are recorded instead of executed; torch may allocate memory and create views. Raises
    NotNativeError for any other torch operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returning True would load torch's compiler, which takes longer than the rest of the start-up."""
        return False

    def __init__(self, library: Any, rows: int) -> None:
        super().__init__()
        self.library, self.rows, self.memory = library, rows, Memory()
        self.whole = False

    def __enter__(self) -> Tape:
        super().__enter__()
        self.handle = self.library.tessera_cpu_record(self.rows)
        weakref.finalize(self, self.library.tessera_cpu_forget, self.handle)
        return self

    def __exit__(self, *raised: Any) -> None:
        self.whole = self.library.tessera_cpu_recorded(self.handle) > 0
        super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MEMORY:
            return self.memory.like(func(*args, **{**(kwargs or {}), "device": "meta"}))
        if func.is_view:
            result = func(*args, **(kwargs or {}))
            if all(_shares(one, args[0]) for one in (result if isinstance(result, Sequence) else (result,))):
                return result
        raise NotNativeError(f"{func} is not among the native kernels")

    def replay(self, rows: int) -> None:
        self.library.tessera_cpu_replay(self.handle, rows)


class Memory:
    """The memory that a tape's calls write to. It is reused once no tensor refers to it, so that a tape needs no more
    memory than a step."""

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)

    def like(self, shape: Tensor) -> Tensor:
        """A dense tensor with the shape and dtype of one on the meta device."""
        size = -(-prod(shape.shape) * shape.element_size() // ALIGNED) * ALIGNED
        free = self.free[size]
        whole = free.pop() if free else _aligned(size)
        lent = whole[:]
        weakref.finalize(lent, free.append, whole)
        flat = torch.from_numpy(lent).view(shape.dtype)
        return flat[: shape.numel()].view(shape.shape)


_aten = torch.ops.aten
_MEMORY = frozenset(
    {
        _aten.empty.memory_format,
        _aten.new_empty.default,
        _aten.empty_like.default,
        # used if there is padding, which a replayed step does not have
        _aten.zeros_like.default,
        _aten.new_zeros.default,
    }
)


def _aligned(size: int) -> np.ndarray[Any, Any]:
    whole = np.empty(size + ALIGNED, np.uint8)
    start = -whole.ctypes.data % ALIGNED
    return whole[start : start + size]


def _shares(first: Tensor, second: Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
