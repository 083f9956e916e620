"""Pallas kernels over the paged cache. tessera_tpu.paged has what they compute, in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array as Jax
from jax.sharding import PartitionSpec as Part

from tessera_tpu.kernels import attention, update
from tessera_tpu.mesh import AXIS, DeviceMesh
from tessera_tpu.paged import Planes
from tessera_tpu.plan import AttentionPlan, Pages

LANES = 128


class Pallas:
    """mesh: each device computes its own heads. interpret: what pallas_call() takes, to run without a TPU."""

    def __init__(self, mesh: DeviceMesh, interpret: Any = False) -> None:
        self.mesh, self.interpret = mesh, interpret

    def dim(self, head_dim: int) -> int:
        return -(-head_dim // LANES) * LANES

    def write(self, planes: Planes, k: Jax, v: Jax, plan: AttentionPlan) -> Planes:
        pages = Pages.from_rows(plan.rows, plan.tables, plan.width, planes[0].shape[2])

        def call(planes: Planes, k: Jax, v: Jax, *parts: Jax) -> Planes:
            return update.write(planes, k, v, Pages(*parts), self.interpret)

        heads, whole = Part(None, AXIS), Part()
        kept = (heads,) * len(planes)
        divided = self._divided(call, (kept, heads, heads, whole, whole, whole, whole), kept)
        updated: Planes = divided(planes, k, v, pages.block, pages.first, pages.last, pages.token)
        return updated

    def attend(
        self, q: Jax, planes: Planes, plan: AttentionPlan, *, scale: float, window: int | None,
        softcap: float | None,
    ) -> Jax:  # fmt: skip
        options = partial(attention.attend, scale=scale, window=window, softcap=softcap, interpret=self.interpret)

        tiles, whole, queries = plan.tiles, Part(), Part(None, None, AXIS)
        kept = (Part(None, AXIS),) * len(planes)
        divided = self._divided(options, (queries, kept, whole, whole, whole, whole), queries)
        mixed: Jax = divided(q, planes, tiles.row, plan.tables, tiles.first, tiles.count)
        return mixed

    def _divided(self, call: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """A kernel is no computation that XLA could divide, so each device is given its part."""
        if self.mesh.size == 1:
            return call
        divided: Callable[..., Any] = jax.shard_map(
            call, mesh=self.mesh.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return divided
