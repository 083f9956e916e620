"""The base of platforms whose kernels are this library's, on a device that torch has."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Communicator,
    Default,
    Device,
    GraphRunner,
    Kernel,
    MixerBackend,
    ModelFacts,
    OpSet,
    Platform,
    PlatformError,
    Reason,
    Scheme,
    ShapePolicy,
    TorchCommunicator,
    TorchDevice,
    WorkerSpec,
    graph_class,
    make_current,
    memory_defaults,
    replace,
)
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.fp8 import on_device
from tessera_triton.graphs import graphs, shapes
from tessera_triton.installed import absent

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera_triton.attention import Trial

SMALLEST_BLOCK = 16
"""Tokens of the smallest block that a backend here uses."""

log = logging.getLogger("tessera.triton")


class TritonPlatform(Platform):
    """A platform package says what its builds of torch and its devices are called, and adds _facts()."""

    # torch's name of the device
    kind: str
    # the attribute of torch.version that builds of torch for it have, and what users call such a build
    build: tuple[str, str]
    # what users call the device, and what to check if torch finds none; {version} stands for the build's
    device_kind: str
    check_device: str
    # the name of Triton's backend for it
    compiler: str
    # the backend of torch.distributed that takes its tensors
    collectives: str
    # the environment variable that chooses devices
    visible: str
    capabilities = Capabilities(dtypes=("bfloat16", "float16", "float32"), index_dtype="int32")
    # the library, so that tests can pass another
    torch: Any = torch
    # of the current device, once there is one
    device_name = "this device"
    # of all kernels, once there are some
    _launch: Launcher | None = None

    @abstractmethod
    def _facts(self) -> DeviceFacts | None:
        """Of the device that open() opened, or of the first before that. All devices of one engine are of one kind.
        None: it has no kernels, and core's reference computes everything. Raises PlatformError if there is no
        device."""

    def _memory(self) -> int:
        """Bytes of the first device, asked for without opening it; 0 if unknown. Default: unknown."""
        return 0

    def _described(self, index: int) -> tuple[str, str]:
        """The name of a device, and what of it kernels are compiled for and tiles are chosen by. Default: its name."""
        name = str(getattr(self.torch, self.kind).get_device_name(index))
        return name, name

    def _captures_collectives(self) -> bool:
        """Whether collectives may be part of a captured graph. Default: yes."""
        return True

    def _more_kernels(self, facts: DeviceFacts) -> Mapping[str, Kernel[Any]]:
        """Kernels that take the place of this library's, such as those of providers. Default: none."""
        return {}

    def _more_backends(self, facts: DeviceFacts) -> Sequence[AttentionBackend]:
        """Attention backends that go before this library's. Default: none."""
        return ()

    def open(self, index: int) -> Device:
        self._require_device()
        name = self._make_current(index)
        self._require_one_kind(index)
        device = TorchDevice(self.torch, self.kind, index)
        device.name = name
        return device

    def _require_device(self) -> None:
        """Raises PlatformError if torch is built for other devices, or finds none."""
        torch, (name, called) = self.torch, self.build
        version = getattr(torch.version, name)
        if version is None:
            raise PlatformError(
                f"platform '{self.name}' needs {called} build of torch, and torch {torch.__version__} is none; "
                "install one."
            )
        if not getattr(torch, self.kind).is_available():
            check = self.check_device.format(version=version)
            raise PlatformError(f"torch {torch.__version__} finds no {self.device_kind}; check {check}.")

    def _require_one_kind(self, index: int) -> None:
        """Raises PlatformError if the device is unlike the first one of the engine, by which all workers choose
        kernels and tiles."""
        if index == 0:
            return
        (first, kind), (name, other) = (self._described(each) for each in (0, index))
        if kind != other:
            raise PlatformError(
                f"device 0 is {first} ({kind}), but device {index} is {name} ({other}): one engine takes devices of "
                f"one kind; choose them with {self.visible}."
            )

    def _make_current(self, index: int) -> str:
        """As make_current(), whose name of the device is kept for the log."""
        self.device_name = make_current(self.torch, self.kind, index)
        return self.device_name

    def _trial(self) -> Trial:
        """Of attention whose keys hardware copies. Default: in a process of its own."""
        from tessera_triton.trial import tried_apart

        return tried_apart

    def _new_launcher(self) -> Launcher:
        """Launches the kernels. Default: on the device."""
        return Launcher()

    def ops(self, reference: OpSet) -> OpSet:
        facts = self._compiled_facts()
        if facts is None:
            log.warning(
                "platform '%s' has no kernels for %s, so core's reference computes everything, which is slow; "
                "`tessera platforms` says why",
                self.name,
                self.device_name,
            )
            return reference
        from tessera_triton.library import kernels

        return replace(reference, **{**kernels(facts, self._launcher()), **self._more_kernels(facts)})

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        facts = self._compiled_facts()
        return scheme if facts is None else on_device(scheme, facts)

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        facts = self._compiled_facts()
        if facts is None:
            return ()
        from tessera_triton.attention import TritonAttention
        from tessera_triton.copying import chosen_copies
        from tessera_triton.encoder import TritonEncoderAttention
        from tessera_triton.latent import TritonLatentAttention
        from tessera_triton.mixers import state_mixers
        from tessera_triton.sparse_latent import TritonSparseLatentAttention

        common = facts, self._launcher()
        own = TritonAttention(*common, copies=chosen_copies(), trial=self._trial())
        others = TritonEncoderAttention, TritonLatentAttention, TritonSparseLatentAttention
        alone = [backend(*common) for backend in others]
        return (*self._more_backends(facts), own, *alone, *state_mixers(*common))

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        return memory_defaults(self._memory())

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        captured = self._captures_collectives()
        return TorchCommunicator.join(
            self.torch, self.collectives, rendezvous, spec.rank, spec.world_size, capturable=captured
        )

    def graph_runner(self, device: Device) -> GraphRunner | Reason:
        runner = graphs(self.torch, device, self.kind)
        return f"torch {self.torch.__version__} has no graphs for {self.kind}" if runner is None else runner

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        if graph_class(self.torch, self.kind) is None:
            return None
        return shapes(model, config, config.cache.block_size or SMALLEST_BLOCK)

    def compilations(self) -> int | None:
        return None if self._launch is None else self._launch.compilations

    def _launcher(self) -> Launcher:
        """The one of all kernels."""
        self._launch = self._launch or self._new_launcher()
        return self._launch

    def _compiled_facts(self) -> DeviceFacts | None:
        return self._facts() if absent(self.compiler) is None else None
