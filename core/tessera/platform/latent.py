"""Latent attention: the contract of its backends, and the bound layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from tessera.platform.attention import (
    Caches,
    KVLayout,
    LatentHeadsSpec,
    LatentLayerSpec,
    LatentSpec,
    Mixer,
    MixerBackend,
    MixerSpec,
    Plane,
)
from tessera.platform.device import Tensor
from tessera.platform.launch import Plan
from tessera.platform.ops import BoundOps


class LatentInput(NamedTuple):
    """What a layer's projections give: queries, and the latent before it is normed and turned."""

    # of all heads, one after another: [T, H (nope_dim + rope_dim)]
    queries: Tensor
    # [T, rank + rope_dim], rows of any stride
    latent: Tensor


class LatentHeads(Mixer):
    """A bound layer over latents, which norms and turns its input with the bound ops.

    The key of head h at a token is kv_up[h, :nope_dim] c, then p, and its value is kv_up[h, nope_dim:] c, where c and p
    are the first and the last part of the token's latent. A layer may compute them (expanded), or multiply queries with
    kv_up's first part and results with its second instead (absorbed); in exact numbers both are the same."""

    def __init__(self, spec: LatentHeadsSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        self.spec, self.weights = spec, weights
        self.norm = ops.bind("rms_norm", spec.latent_norm)
        self.rotary = ops.bind("rotary", spec.rotary) if spec.rotary is not None else None

    @abstractmethod
    def write(self, latent: Tensor, caches: Caches, plan: Plan) -> None:
        """Writes latent [T, rank + rope_dim], normed and turned, into the cache slots of the plan."""

    def inputs(self, x: LatentInput, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The arguments of attend() and of write(). x is written to."""
        spec = self.spec
        q = x.queries.view(len(x.queries), spec.num_heads, spec.query_dim)
        latent = x.latent
        if self.rotary is not None:
            turned = latent[:, None, spec.cache.rank :]
            self.rotary(q[..., spec.nope_dim :], turned, positions, self.weights["cos_sin"])
        first = latent[:, : spec.cache.rank]
        first.copy_(self.norm(first, self.weights["latent_norm"]))
        return q, latent


class LatentLayer(LatentHeads):
    """A bound layer of latent attention. A subclass adds write() and attend()."""

    @abstractmethod
    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None) -> Tensor:
        """q [T, H, nope_dim + rope_dim], turned -> [T, H, value_dim]"""

    def fused(self, x: LatentInput, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """Default: inputs(), write(), attend()."""
        q, latent = self.inputs(x, positions)
        self.write(latent, caches, plan)
        return self.attend(q, caches, plan).flatten(1)


class LatentBackend(MixerBackend[LatentLayerSpec]):
    """One implementation of latent attention. The weights of bind() are "latent_norm" [rank], "cos_sin" [positions,
    rope_dim] float32 (cosines, then sines) if the spec has a rotary embedding, and "kv_up" [H, nope_dim + value_dim,
    rank]: for each head, the rows that make its key, then those that make its value."""

    def handles(self, spec: MixerSpec) -> bool:
        return isinstance(spec, LatentLayerSpec)

    def kv_cache_layout(self, spec: LatentSpec, block_size: int) -> KVLayout:
        """Default: the latents, ordered (token, dim)."""
        return KVLayout((Plane("latent", spec.dtype, (("token", block_size), ("dim", spec.rank + spec.rope_dim))),))
