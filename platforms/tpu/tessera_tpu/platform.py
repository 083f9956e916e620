"""The platform: what core asks of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import jax

from tessera.platform import (
    Capabilities,
    Device,
    FullAttentionSpec,
    ModelFacts,
    ModelRunner,
    Platform,
    PlatformError,
    Problem,
    Reason,
    RunnerServices,
    Scheme,
    WorkerSpec,
)
from tessera_tpu.device import JaxDevice
from tessera_tpu.kernels import Pallas
from tessera_tpu.mesh import DeviceMesh
from tessera_tpu.ops import multiplied
from tessera_tpu.paged import Kernels, Plain
from tessera_tpu.runner import JaxRunner

if TYPE_CHECKING:
    from tessera.config import EngineConfig, ParallelConfig


class TpuPlatform(Platform):
    """kind: JAX's name for the devices."""

    name = "tpu"
    kind = "tpu"
    capabilities = Capabilities(dtypes=("bfloat16", "float32"), index_dtype="int32", static_shapes=True)

    def open(self, index: int) -> Device:
        devices = self._devices()
        if index >= len(devices):
            raise PlatformError(
                f"platform '{self.name}' has {len(devices)} devices here, and device {index} was asked for; lower "
                "--tensor-parallel-size."
            )
        return JaxDevice(devices[index])

    def _devices(self) -> Sequence[Any]:
        try:
            devices: Sequence[Any] = jax.devices(self.kind)
        except RuntimeError as error:
            raise PlatformError(
                f"JAX {jax.__version__} opens no {self.kind} here ({str(error).partition(chr(10))[0]}); check that "
                "libtpu is installed, and that no other process uses the chips."
            ) from error
        return devices

    def placement(self, parallel: ParallelConfig) -> Sequence[WorkerSpec]:
        """One process drives all devices, of each pipeline stage; runners refuse more than one stage."""
        size, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        return [
            WorkerSpec(stage, stages, tuple(range(stage * size, (stage + 1) * size)), threads=parallel.threads)
            for stage in range(stages)
        ]

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        ranks = config.parallel.tensor_parallel_size
        heads = {cache.spec.num_kv_heads for cache in model.caches if isinstance(cache.spec, FullAttentionSpec)}
        odd = sorted(number for number in heads if number % ranks)
        if not odd:
            return ()
        return [Problem(f"{odd[0]} key/value heads are not divisible by --tensor-parallel-size {ranks}; lower it.")]

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        return multiplied(scheme)

    def runner(self, services: RunnerServices) -> ModelRunner:
        mesh = DeviceMesh([cast(JaxDevice, device).device for device in services.devices])
        return JaxRunner(services, mesh, self._kernels(mesh))

    def _kernels(self, mesh: DeviceMesh) -> Kernels:
        """Of attention over the paged cache."""
        return Pallas(mesh)


class HostPlatform(TpuPlatform):
    """The same on JAX's CPU, to try the platform without a chip: `--platform tessera_tpu.platform:HostPlatform`."""

    name = "tpu-host"
    kind = "cpu"

    def enter_process(self, spec: WorkerSpec) -> None:
        """JAX makes as many devices of the CPU as it is told before its first use."""
        if not spec.shared and len(spec.devices) > 1:
            flag = f"--xla_force_host_platform_device_count={max(spec.devices) + 1}"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()

    def _kernels(self, mesh: DeviceMesh) -> Kernels:
        return Plain()


class InterpretedPlatform(HostPlatform):
    """With the Pallas kernels, which JAX interprets: slow, for tests."""

    name = "tpu-interpreted"

    def _kernels(self, mesh: DeviceMesh) -> Kernels:
        return Pallas(mesh, interpret=True)
