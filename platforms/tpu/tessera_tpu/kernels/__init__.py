"""Pallas kernels over the paged cache. tessera_tpu.paged has what they compute, in plain JAX."""

from __future__ import annotations

from typing import Any

from jax import Array as Jax

from tessera_tpu.kernels import attention, update
from tessera_tpu.plan import AttentionPlan, Pages


class Pallas:
    """interpret: what pallas_call() takes, to run them without a TPU."""

    def __init__(self, interpret: Any = False) -> None:
        self.interpret = interpret

    def write(self, planes: tuple[Jax, Jax], k: Jax, v: Jax, plan: AttentionPlan) -> tuple[Jax, Jax]:
        pages = Pages.of(plan.rows, plan.tables, plan.width, planes[0].shape[2])
        return update.write(planes, k, v, pages, self.interpret)

    def attend(
        self, q: Jax, planes: tuple[Jax, Jax], plan: AttentionPlan, *, scale: float, window: int | None,
        softcap: float | None,
    ) -> Jax:  # fmt: skip
        tiles = plan.tiles
        return attention.attend(
            q, planes, tiles.row, plan.tables, tiles.first, tiles.count, scale=scale, window=window, softcap=softcap,
            interpret=self.interpret,
        )  # fmt: skip
