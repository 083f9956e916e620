"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Communicator,
    Default,
    Device,
    ModelFacts,
    OpSet,
    Platform,
    TorchDevice,
    WorkerSpec,
    replace,
)
from tessera_fakechip import collectives
from tessera_fakechip.attention import FakechipAttention
from tessera_fakechip.linear import Linear
from tessera_fakechip.mlp import GatedMLP
from tessera_fakechip.norms import AddNorm, RMSNorm
from tessera_fakechip.rotary import Rotary


class FakechipPlatform(Platform):
    name = "fakechip"
    capabilities = Capabilities(dtypes=("bfloat16", "float32", "float16"), index_dtype="int32")

    def enter_process(self, spec: WorkerSpec) -> None:
        import_module("torch_fakechip")

    def open(self, index: int) -> Device:
        return TorchDevice(torch, "fakechip", index)

    def ops(self, reference: OpSet) -> OpSet:
        return replace(
            reference,
            linear=Linear(),
            add_norm=AddNorm(),
            rms_norm=RMSNorm(),
            gated_mlp=GatedMLP(),
            rotary=Rotary(),
        )

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (FakechipAttention(),)

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        reason = "attention takes much of the chip's 256 MiB"
        return {
            "scheduler.max_num_batched_tokens": Default(256, reason),
            "scheduler.max_num_seqs": Default(16, reason),
        }

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return collectives.join(spec, rendezvous)
