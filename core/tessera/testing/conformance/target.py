"""The platform under test, found by its name or dotted path, with one device opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tessera.config import EngineConfig, ModelConfig, SchedulerConfig
from tessera.config.engine import SpeculativeConfig
from tessera.ops import REFERENCE
from tessera.platform.attention import AttentionBackend, MixerBackend, MixerSpec
from tessera.platform.collectives import Alone
from tessera.platform.device import Device
from tessera.platform.latent import LatentBackend
from tessera.platform.model import LayerCache, ModelFacts
from tessera.platform.ops import BoundOps, OpSet, with_extra
from tessera.platform.platform import Platform, WorkerSpec
from tessera.plugins import Selected, load_platform, select
from tessera.testing.attention import Shaping
from tessera.testing.reference import host_device

KIT_PLATFORMS: Mapping[str, str] = MappingProxyType(
    {"reference": "tessera.testing:ReferencePlatform", "strict": "tessera.testing:StrictPlatform"}
)
"""Platforms that come with the kit."""


@dataclass
class Target:
    path: str  # dotted path of the platform's class
    selected: Selected | None = None  # the result of discovery and probe; None if a path was given
    num_devices: int | None = None  # how many to test collectives on; None: as many as the probe reports
    # The process is not the kit's own, so nothing process-wide may be changed; otherwise the platform enters the
    # process as a server's worker, and speeds are those of a worker.
    shared: bool = True
    worker: WorkerSpec | None = None  # the one whose process this is; its first device is opened
    platform: Platform = field(init=False)
    device: Device = field(init=False)
    ops: OpSet = field(init=False)  # the platform's, over core's reference
    # From a separate instance of the platform, since ops may ask which launch is running.
    backends: Sequence[MixerBackend[Any]] = field(init=False)

    def __post_init__(self) -> None:
        levels = None if self.selected is None else self.selected.levels
        self.platform = load_platform(self.path, levels)
        self.worker = self.worker or WorkerSpec(0, 1, (0,), shared=self.shared)
        self.platform.enter_process(self.worker)
        self.open()
        self.ops = self.platform.ops(REFERENCE)
        self.backends = load_platform(self.path, levels).attention_backends()

    def open(self) -> None:
        """Opens the device. Cases that measure call it again, so that speeds do not depend on what an earlier case
        changed, such as the number of threads."""
        assert self.worker is not None
        self.device = self.platform.open(self.worker.devices[0])

    @classmethod
    def named(cls, name: str, num_devices: int | None = None, *, shared: bool = True) -> Target:
        """name: of an installed platform or one of the kit's own, or a dotted path. Raises PlatformError."""
        path = KIT_PLATFORMS.get(name, name)
        if ":" in path:
            return cls(path, num_devices=num_devices, shared=shared)
        selected = select(name)
        return cls(selected.platform, selected, num_devices, shared)

    @property
    def attention_backends(self) -> Sequence[AttentionBackend]:
        """The backends of layers that a LayerSpec describes."""
        return [backend for backend in self.backends if isinstance(backend, AttentionBackend)]

    @property
    def latent_backends(self) -> Sequence[LatentBackend]:
        """Those of latent attention."""
        return [backend for backend in self.backends if isinstance(backend, LatentBackend)]

    @property
    def devices(self) -> int:
        """How many devices to test collectives on, at least 1."""
        found = 0 if self.selected is None else len(self.selected.probe.devices)
        return self.num_devices or max(found, 1)

    @property
    def brings_a_runner(self) -> bool:
        """Whether the platform is at runner depth, where core runs none of its ops and attention."""
        return type(self.platform).runner is not Platform.runner

    def shaping(self, spec: MixerSpec, max_model_len: int, most_decoded: int = 1) -> Shaping | None:
        """How the platform splits and pads launches of a model with such layers; None: launches have exact shapes.
        most_decoded: tokens of a decode row at most, drafts among them."""
        caches = () if spec.cache is None else (LayerCache(0, spec.cache),)
        facts = ModelFacts(
            "LlamaForCausalLM", 101, 72, 1, max_model_len, spec.dtype, caches, chunkable=spec.cache is not None
        )
        model = ModelConfig("", "conformance", {}, facts.vocab_size, max_model_len, dtype=spec.dtype)
        drafts = SpeculativeConfig("ngram", most_decoded - 1) if most_decoded > 1 else None
        scheduler = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048, speculative=drafts)
        config = EngineConfig(model=model, scheduler=scheduler, platform=self.path)
        policy = self.platform.shapes(facts, config)
        return None if policy is None else Shaping(policy)

    @property
    def exact_dtype(self) -> str:
        """float32, in which rounding does not decide tokens; if it is not claimed, the first dtype that is."""
        claimed = self.platform.capabilities.dtypes
        return "float32" if "float32" in claimed else claimed[0]

    @property
    def reference(self) -> OpSet:
        """Core's op table, with the platform's own ops but without their kernels."""
        own = [self.ops[name] for name in self.ops.names() if name not in REFERENCE.names()]
        return with_extra(REFERENCE, [dataclasses.replace(op, kernel=None) for op in own])

    def bound(self) -> BoundOps:
        """The platform's ops on its device."""
        return BoundOps(self.ops, self.device, {"tensor": Alone()})


def reference_ops(ops: OpSet = REFERENCE) -> BoundOps:
    """The references on the host, with which everything else is compared."""
    return BoundOps(ops, host_device(), {"tensor": Alone()})
