"""Where the kernels' caches are."""

from __future__ import annotations

from typing import Any

from jax.experimental.pallas import tpu as pltpu

from tessera_tpu.paged import Planes


def in_hbm(planes: Planes, interpret: Any = False) -> Planes:
    """The planes, bound to the device's large memory. A block specification only says that a kernel takes them there:
    XLA would still move a plane that fits, such as one of scales, into its fast memory before each kernel, and copy
    all of it, where a kernel reads or writes a few blocks. interpret: what pallas_call() takes; there is no such memory
    then."""
    if interpret:
        return planes
    return tuple(pltpu.with_memory_space_constraint(plane, pltpu.HBM) for plane in planes)
