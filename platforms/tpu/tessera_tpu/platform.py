"""The platform: what core asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from tessera.platform import (
    Capabilities,
    Device,
    ModelRunner,
    Platform,
    PlatformError,
    RunnerServices,
)
from tessera_tpu.device import JaxDevice
from tessera_tpu.kernels import Pallas
from tessera_tpu.paged import Kernels, Plain
from tessera_tpu.runner import JaxRunner

if TYPE_CHECKING:
    from typing import Any


class TpuPlatform(Platform):
    """kind: JAX's name for the devices."""

    name = "tpu"
    kind = "tpu"
    capabilities = Capabilities(dtypes=("bfloat16", "float32"), index_dtype="int32", static_shapes=True)

    def open(self, index: int) -> Device:
        return JaxDevice(self._devices()[index])

    def _devices(self) -> list[Any]:
        try:
            return jax.devices(self.kind)
        except RuntimeError as error:
            raise PlatformError(
                f"JAX {jax.__version__} opens no {self.kind} here ({str(error).partition(chr(10))[0]}); check that "
                "libtpu is installed, and that no other process uses the chips."
            ) from error

    def runner(self, services: RunnerServices) -> ModelRunner:
        return JaxRunner(services, self.kernels())

    def kernels(self) -> Kernels:
        """Of attention over the paged cache."""
        return Pallas()


class HostPlatform(TpuPlatform):
    """The same on JAX's CPU, to try the platform without a chip: `--platform tessera_tpu.platform:HostPlatform`."""

    name = "tpu-host"
    kind = "cpu"

    def kernels(self) -> Kernels:
        return Plain()


class InterpretedPlatform(HostPlatform):
    """With the Pallas kernels, which JAX interprets: slow, for tests."""

    name = "tpu-interpreted"

    def kernels(self) -> Kernels:
        return Pallas(interpret=True)
