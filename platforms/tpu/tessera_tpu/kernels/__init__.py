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
from tessera_tpu.plan import AttentionPlan, Pages

LANES = 128


class Pallas:
    """mesh: each device computes its own heads. interpret: what pallas_call() takes, to run without a TPU."""

    def __init__(self, mesh: DeviceMesh, interpret: Any = False) -> None:
        self.mesh, self.interpret = mesh, interpret

    def dim(self, head_dim: int) -> int:
        return -(-head_dim // LANES) * LANES

    def write(self, planes: tuple[Jax, Jax], k: Jax, v: Jax, plan: AttentionPlan) -> tuple[Jax, Jax]:
        pages = Pages.of(plan.rows, plan.tables, plan.width, planes[0].shape[2])

        def call(keys: Jax, values: Jax, k: Jax, v: Jax, *parts: Jax) -> tuple[Jax, Jax]:
            return update.write((keys, values), k, v, Pages(*parts), self.interpret)

        heads, whole = Part(None, AXIS), Part()
        given = pages.block, pages.first, pages.last, pages.token
        divided = self._divided(call, (heads, heads, heads, heads, whole, whole, whole, whole), (heads, heads))
        updated: tuple[Jax, Jax] = divided(*planes, k, v, *given)
        return updated

    def attend(
        self, q: Jax, planes: tuple[Jax, Jax], plan: AttentionPlan, *, scale: float, window: int | None,
        softcap: float | None,
    ) -> Jax:  # fmt: skip
        options = partial(attention.attend, scale=scale, window=window, softcap=softcap, interpret=self.interpret)

        def call(q: Jax, keys: Jax, values: Jax, *parts: Jax) -> Jax:
            return options(q, (keys, values), *parts)

        tiles, whole, queries = plan.tiles, Part(), Part(None, None, AXIS)
        heads = Part(None, AXIS)
        divided = self._divided(call, (queries, heads, heads, whole, whole, whole, whole), queries)
        mixed: Jax = divided(q, *planes, tiles.row, plan.tables, tiles.first, tiles.count)
        return mixed

    def _divided(self, call: Callable[..., Any], given: Any, made: Any) -> Callable[..., Any]:
        """A kernel is no computation that XLA could divide, so each device is given its part."""
        if self.mesh.size == 1:
            return call
        divided: Callable[..., Any] = jax.shard_map(
            call, mesh=self.mesh.mesh, in_specs=given, out_specs=made, check_vma=False
        )
        return divided
