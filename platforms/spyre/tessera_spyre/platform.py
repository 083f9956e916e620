"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Communicator,
    CompiledGraphs,
    CompiledPlatform,
    Default,
    Device,
    FullAttentionSpec,
    FunctionalCommunicator,
    GraphRunner,
    ModelFacts,
    PlatformError,
    Problem,
    Reason,
    Scheme,
    WorkerSpec,
    doubled,
    with_ranks,
)
from tessera_spyre.attention import STICK, StickAttention
from tessera_spyre.device import SpyreDevice

if TYPE_CHECKING:
    from tessera.config import EngineConfig

ROWS = 4
"""Requests at once, unless the user says otherwise: each number of rows is compiled for each width of the tables."""
_HALVES = 2 * STICK  # rotary turns halves of a head, which are whole sticks


class SpyrePlatform(CompiledPlatform):
    """Blocks are whole sticks; the narrowest block table holds 256 tokens."""

    name = "spyre"
    package = "torch_spyre"
    install = "build it for torch {torch} with the vendor's runtime"
    block_sizes = (STICK,)
    prompt_tokens = doubled(STICK, 512)
    capabilities = Capabilities(dtypes=("float16",), async_dispatch=False, static_shapes=True)  # no pinned memory
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        super().enter_process(spec)
        if not hasattr(self.torch, "spyre"):
            raise PlatformError(
                "torch_spyre is installed, but registered no device; unset TORCH_DEVICE_BACKEND_AUTOLOAD, with which "
                "torch loads none."
            )

    def placement(self, parallel: Any) -> Sequence[WorkerSpec]:
        """The library of collectives reads its ranks from the environment when it is loaded."""
        return with_ranks(parallel)

    def open(self, index: int) -> Device:
        count = self.torch.spyre.device_count()
        if index >= count:
            raise PlatformError(
                f"there is no Spyre card {index}: torch finds {count}; lower --tensor-parallel-size, or give this "
                "process access to more cards."
            )
        self.torch.spyre.set_device(index)
        device = SpyreDevice(self.torch, index)
        device.name = f"Spyre {index}"
        return device

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        return "weights are in float16 alone"

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (StickAttention(self.torch, self.block_sizes),)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return FunctionalCommunicator.join(
            self.torch, "spyreccl", rendezvous, spec.rank, spec.world_size, capturable=True
        )

    def graph_runner(self, device: Device) -> GraphRunner:
        """torch_spyre is a part of torch's own compiler."""
        return CompiledGraphs(self.torch, device, "inductor")

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        fewer = "fewer shapes to compile"
        return {
            "cache.block_size": Default(STICK, "blocks are whole sticks"),
            "scheduler.max_num_seqs": Default(ROWS, fewer),
            "scheduler.max_num_batched_tokens": Default(max(self.prompt_tokens), fewer),
        }

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        specs = {cache.spec for cache in model.caches if isinstance(cache.spec, FullAttentionSpec)}
        return [
            Problem(
                f"this model has heads of {spec.head_dim} elements, and the card's memory holds halves of heads in "
                f"sticks of {STICK}; serve one whose heads are a multiple of {_HALVES}"
            )
            for spec in specs
            if spec.head_dim % _HALVES
        ]
