"""Latent attention (MLA, DeepSeek-V2, arXiv:2405.04434) over a paged cache: which layers it takes, what a launch needs,
and the bound layer. absorbed.py attends over latents, prefill.py over keys and values that are computed from them,
latent_cache.py writes the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import e, log2
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    FullAttentionSpec,
    LatentBackend,
    LatentHeadsSpec,
    LatentInput,
    LatentLayer,
    LatentLayerSpec,
    Launch,
    LayerSpec,
    Reason,
    SparseLatentLayerSpec,
)
from tessera_triton.absorbed import absorbed_rows, absorbed_tiles
from tessera_triton.attention import PagedLayer, PagedPlan, TritonAttention, paged_plan
from tessera_triton.decode import combine_parts
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.latent_cache import latent_input
from tessera_triton.tiles import LatentTile, kind_of, latent_tile

_DTYPES = ("bfloat16", "float16", "float32")
_WIDEST = 512, 64  # the largest parts of a latent
_FEW = 8  # tokens of a row that absorbed_rows takes
_MANY = 1024  # tokens that decode beyond which some heads are computed at a time, as in prompts
_TOGETHER = 16  # of these, at most
_FEWEST = 128  # tokens of a row for which keys and values are computed
_ROOM = 256 << 20  # bytes of these
_AT_ONCE = 2048  # elements of latents that a program writes


class ExpandedRow(NamedTuple):
    """Whose keys and values are computed."""

    # number in the launch
    row: int
    # where its tokens begin in the launch
    start: int
    # that it computes
    tokens: int
    # its tokens in the cache
    keys: int


@dataclass(frozen=True)
class LatentPlan:
    """The tensors of a launch, and what its shape says; of one that runs eagerly, also how each row is computed."""

    # of all rows
    paged: PagedPlan
    # where the tokens of rows start, counted from paged.others_start
    starts: Tensor
    # as paged.lengths, but 0 for rows that are expanded
    lengths: Tensor
    # rows whose keys and values are computed
    expanded: tuple[ExpandedRow, ...]
    # whether other rows than paged.few are computed over latents
    absorbs: bool


class TritonLatentAttention(LatentBackend):
    """Any number of heads, of any sizes."""

    name = "triton-latent"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: LatentLayerSpec) -> Reason | None:
        return why_not(spec)

    def constraints(self, spec: LatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(64, 16), align_bytes=16, dense_planes=True)

    def bind(self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> LatentLayer:
        return TritonLatentLayer(spec, weights, ops, self.facts, self.launch)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> LatentPlan:
        return latent_plan(
            launch, group, buffers, self.facts, expands=expanded_heads(group.spec, self.facts) is not None
        )


def latent_plan(
    launch: Launch, group: AttentionGroup, buffers: Buffers | None, facts: DeviceFacts, *, expands: bool
) -> LatentPlan:
    """expands: keys and values may be computed."""
    spec = group.spec
    pairs = (launch.key.width if launch.key.width <= _FEW else 1) * spec.num_heads
    spare = max(facts.processors // -(-pairs // tile_of(spec, facts, pairs).queries), 1)
    paged = paged_plan(launch, group.number, buffers, _FEW, spare, None)
    others = range(paged.few, launch.num_rows)
    expanded = tuple(_expanded(launch, spec, others)) if expands and buffers is None else ()
    starts = paged.starts - paged.others_start if paged.others_start else paged.starts
    lengths = paged.lengths.clone() if expanded else paged.lengths
    for row in expanded:
        lengths[row.row].zero_()
    return LatentPlan(paged, starts, lengths, expanded, len(expanded) < len(others) or buffers is not None)


def _expanded(launch: Launch, spec: LatentHeadsSpec, rows: range) -> Iterator[ExpandedRow]:
    """The rows that are better expanded."""
    on_host = launch.query_start_loc_host, launch.query_lens_host, launch.seq_lens_host
    for number in rows:
        row = ExpandedRow(number, *(int(of[number]) for of in on_host))
        if better_expanded(spec, row):
            yield row


def better_expanded(spec: LatentHeadsSpec, row: ExpandedRow) -> bool:
    """Whether it takes fewer products to compute the keys and values of a row than to multiply queries with its
    latents, and there is room for them."""
    cache, tokens, keys = spec.cache, row.tokens, row.keys
    of_key = heads_together(spec.num_heads) * 2 * spec.query_dim * (4 if spec.dtype == "float32" else 2)
    if tokens < _FEWEST or keys * of_key > _ROOM:
        return False
    pairs, up = tokens * (keys - tokens) + tokens * (tokens + 1) // 2, (spec.nope_dim + spec.value_dim) * cache.rank
    return keys * up + pairs * 2 * spec.query_dim < tokens * up + pairs * (2 * cache.rank + cache.rope_dim)


def expanded_heads(spec: LatentHeadsSpec, facts: DeviceFacts) -> LayerSpec | None:
    """Attention of a part of the heads over their keys and values, which are as wide as keys; None if there are no
    kernels for it."""
    if spec.value_dim > spec.query_dim or (spec.query_dim > 128 and kind_of(facts) == "wave32, operands twice"):
        return None  # the latter spills there
    heads = heads_together(spec.num_heads)
    cache = FullAttentionSpec(heads, spec.query_dim, spec.dtype)
    layer = LayerSpec(0, "attention", heads, heads, spec.query_dim, spec.scale, spec.dtype, cache)
    return layer if TritonAttention(facts).supports(layer) is None else None


def why_not(spec: LatentHeadsSpec) -> Reason | None:
    """Why the kernels cannot run a layer."""
    cache, (rank, rope) = spec.cache, _WIDEST
    if spec.dtype not in _DTYPES:
        return f"no kernels for {spec.dtype}"
    if cache.dtype != spec.dtype:
        return f"latents in {cache.dtype}"
    if cache.rank > rank or cache.rope_dim > rope:
        return f"latents of {cache.rank} + {cache.rope_dim}, more than {rank} + {rope}"
    return None


def heads_together(heads: int) -> int:
    """Of a part of so many, in which prompts are computed: as many as divide them."""
    return max(number for number in range(1, min(heads, _TOGETHER) + 1) if heads % number == 0)


def tile_of(spec: LatentHeadsSpec, facts: DeviceFacts, pairs: int) -> LatentTile:
    """For rows of so many queries times heads."""
    selected = isinstance(spec, SparseLatentLayerSpec)
    return latent_tile(facts, spec.dtype, blocks_of(spec), pairs, selected=selected)


def blocks_of(spec: LatentHeadsSpec) -> tuple[int, int]:
    """The two parts of a latent, as matrix instructions take them."""
    return max(power_of_two(spec.cache.rank), 16), max(power_of_two(spec.cache.rope_dim), 16)


class Latents:
    """The launches of a layer. Latents are in a dense plane [blocks, token, rank + rope_dim]."""

    def __init__(
        self, spec: LatentHeadsSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher
    ) -> None:
        self.spec, self.weights, self.facts, self.launch = spec, weights, facts, launch
        heads, no_ops = expanded_heads(spec, facts), cast("BoundOps", None)  # it binds none
        # Of keys and values that are computed, a part of the heads at a time; None: they are not.
        self.attention = None if heads is None else PagedLayer(heads, {}, no_ops, facts, launch)

    def put(self, q: Tensor | None, latent: Tensor, positions: Tensor, caches: Caches, plan: LatentPlan) -> None:
        """Norms and turns latents [T, rank + rope_dim] into their slots, and turns the last part of q [T, H,
        query_dim] in place; without q, only stores them."""
        spec, (plane,) = self.spec, caches[self.spec.layer]
        latent = latent if latent.stride(-1) == 1 else latent.contiguous()
        rotary = None if q is None else spec.rotary
        table = latent if rotary is None else self.weights["cos_sin"]
        turned = latent if q is None else q[..., spec.nope_dim :]
        rank, rope = blocks_of(spec)
        turns, tokens, together = 0 if rotary is None else rotary.dim, len(latent), max(_AT_ONCE // rank, 1)
        if tokens:
            self.launch(
                latent_input, (-(-tokens // together) + (tokens if turns else 0),),
                turned, turned.stride(0), 1 if q is None else turned.stride(1), latent, latent.stride(0), positions,
                table, table.stride(0), self.weights["latent_norm"], spec.latent_norm.eps, spec.latent_norm.offset,
                plan.paged.slots, plane, plane.stride(0), tokens,
                HEADS=spec.num_heads, RANK=spec.cache.rank, ROPE=spec.cache.rope_dim, SIZE=plan.paged.size,
                ROTARY=turns, PAIRS=rotary is not None and rotary.style == "pairs", NORMED=q is not None,
                BLOCK_T=together, BLOCK_H=power_of_two(spec.num_heads), BLOCK_R=rank, BLOCK_P=rope,
                BLOCK_A=power_of_two(turns // 2), num_warps=4,
            )  # fmt: skip

    def over(
        self, q: Tensor, caches: Caches, plan: LatentPlan, out: Tensor | None, selection: Tensor | None = None
    ) -> Tensor:
        """q [T, H, query_dim], turned -> [T, H, value_dim]. selection: as that of sparse attention [T, limit]."""
        spec, paged = self.spec, plan.paged
        q = q if q.stride(-1) == 1 else q.contiguous()
        make = torch.zeros if paged.padded else torch.empty
        made = make((len(q), spec.num_heads, spec.value_dim), dtype=q.dtype, device=q.device)
        if paged.few and paged.tokens:
            some = slice(0, paged.tokens if paged.few == paged.rows else paged.others_start)
            over_rows = partial(self._rows, selection=selection)
            for heads in self._parts(len(q[some])):
                self._absorbed(over_rows, q[some, heads], heads, caches, plan, made[some, heads])
        if paged.others_start < paged.tokens and paged.few < paged.rows:
            others = slice(paged.others_start, None)
            for heads in self._parts(_MANY + 1):
                if plan.absorbs:
                    self._absorbed(self._tiles, q[others, heads], heads, caches, plan, made[others, heads])
                for row in plan.expanded:
                    self._expanded(row, q, heads, caches, plan, made)
        return made if out is None else out.copy_(made)

    def _parts(self, tokens: int) -> Sequence[slice]:
        """The heads that are computed at a time for so many tokens."""
        heads = self.spec.num_heads
        together = heads if tokens <= _MANY else heads_together(heads)
        return [slice(first, first + together) for first in range(0, heads, together)]

    def _absorbed(
        self, attend: Callable[..., None], q: Tensor, heads: slice, caches: Caches, plan: LatentPlan, out: Tensor
    ) -> None:
        """Of some heads, q [T, heads, query_dim] and out [T, heads, value_dim]. attend: over latents."""
        spec = self.spec
        key_up, value_up = self._up(heads)
        absorbed = q.new_empty(*q.shape[:2], spec.cache.rank)
        torch.bmm(q[..., : spec.nope_dim].transpose(0, 1), key_up, out=absorbed.transpose(0, 1))
        mixed = torch.zeros_like(absorbed) if plan.paged.padded else torch.empty_like(absorbed)
        attend(absorbed, q[..., spec.nope_dim :], caches, plan, mixed)
        torch.bmm(mixed.transpose(0, 1), value_up.mT, out=out.transpose(0, 1))

    def _up(self, heads: slice) -> tuple[Tensor, Tensor]:
        """What makes keys [heads, nope_dim, rank] and values [heads, value_dim, rank] of latents."""
        key_up, value_up = self.weights["kv_up"][heads].split((self.spec.nope_dim, self.spec.value_dim), dim=1)
        return key_up, value_up

    def _expanded(
        self, row: ExpandedRow, q: Tensor, heads: slice, caches: Caches, plan: LatentPlan, out: Tensor
    ) -> None:
        """Of some heads of a row, whose keys and values are computed, as attention over a cache of their own."""
        spec, paged, (plane,), attention = self.spec, plan.paged, caches[self.spec.layer], self.attention
        assert attention is not None, "the plan knows"
        number = -(-row.keys // paged.size)
        latents = plane.index_select(0, paged.table[row.row, :number]).flatten(0, 1)
        compressed, turned = latents.split((spec.cache.rank, spec.cache.rope_dim), dim=1)
        both = (compressed @ self.weights["kv_up"][heads].flatten(0, 1).T).unflatten(1, (attention.spec.num_heads, -1))
        plain, values = both.split((spec.nope_dim, spec.value_dim), dim=2)
        keys = torch.cat((plain, turned[:, None].expand(-1, plain.shape[1], -1)), dim=2)
        values = F.pad(values, (0, spec.query_dim - spec.value_dim))
        one = slice(row.row, row.row + 1)
        of_row = PagedPlan(
            slots=paged.slots, table=torch.arange(number, dtype=paged.table.dtype, device=q.device)[None],
            starts=paged.starts.new_zeros(1), lengths=paged.lengths[one], ends=paged.ends[one], rows=1,
            tokens=row.tokens, few=0, few_width=1, others_start=0, spare=1, divides=False, fills=False, padded=False,
            size=paged.size,
        )  # fmt: skip
        tokens, blocks = slice(row.start, row.start + row.tokens), (number, paged.size)
        planes = [each.unflatten(0, blocks) for each in (keys, values)]
        out[tokens, heads] = attention.attend(q[tokens, heads], [planes], of_row)[..., : spec.value_dim]

    def _operands(
        self,
        absorbed: Tensor,
        turned: Tensor,
        caches: Caches,
        paged: PagedPlan,
        starts: Tensor,
        lengths: Tensor,
        mixed: Tensor,
    ) -> tuple[Any, ...]:
        (plane,) = caches[self.spec.layer]
        return (
            absorbed, absorbed.stride(0), absorbed.stride(1), turned, turned.stride(0), turned.stride(1),
            plane, plane.stride(0), paged.table, paged.table.stride(0), starts, lengths, paged.ends,
            mixed, mixed.stride(0), mixed.stride(1), self.spec.scale * log2(e),
        )  # fmt: skip

    def _constants(self, tile: LatentTile, heads: int, paged: PagedPlan) -> dict[str, Any]:
        spec, (rank, rope) = self.spec, blocks_of(self.spec)
        return {
            "HEADS": heads, "RANK": spec.cache.rank, "ROPE": spec.cache.rope_dim, "SIZE": paged.size,
            "BLOCK_M": tile.queries, "BLOCK_N": tile.latents, "BLOCK_R": rank, "BLOCK_P": rope, "PIECE": tile.piece,
            "num_warps": tile.warps, "num_stages": tile.stages,
        }  # fmt: skip

    def _rows(
        self, absorbed: Tensor, turned: Tensor, caches: Caches, plan: LatentPlan, mixed: Tensor,
        selection: Tensor | None = None,
    ) -> None:  # fmt: skip
        paged, (_, heads, rank), device = plan.paged, absorbed.shape, absorbed.device
        spare, width = paged.spare, paged.few_width
        tile = tile_of(self.spec, self.facts, heads * width)
        # All divided rows together have no more parts than there are spare programs.
        most = spare * width if paged.divides else 0
        parts = torch.empty(most, heads, rank, dtype=torch.float32, device=device)
        logs = torch.empty(most, heads, dtype=torch.float32, device=device)
        counts = (paged.few, spare, width, int(paged.fills))
        operands = self._operands(absorbed, turned, caches, paged, paged.starts, paged.lengths, mixed)
        self.launch(
            absorbed_rows, (paged.few + spare, -(-heads * width // tile.queries)), *operands,
            absorbed if selection is None else selection.contiguous(), parts, logs, *counts,
            **self._constants(tile, heads, paged), SELECTS=0 if selection is None else selection.shape[1],
        )  # fmt: skip
        if paged.divides:
            block, _ = blocks_of(self.spec)
            self.launch(
                combine_parts, (min(paged.few, max(spare // 2, 1)) * width, heads),
                parts, logs, paged.starts, paged.lengths, paged.ends, mixed, mixed.stride(0), mixed.stride(1), logs,
                *counts,
                HEADS=heads, DIM=rank, WINDOW=0, SUMS=False, BLOCK_N=tile.latents, BLOCK_D=block,
                num_warps=16 if block > 256 else 8,
            )  # fmt: skip

    def _tiles(self, absorbed: Tensor, turned: Tensor, caches: Caches, plan: LatentPlan, mixed: Tensor) -> None:
        paged, (tokens, heads, _) = plan.paged, absorbed.shape
        tile = tile_of(self.spec, self.facts, tokens * heads)
        operands = self._operands(absorbed, turned, caches, paged, plan.starts, plan.lengths, mixed)
        self.launch(
            absorbed_tiles, ((tokens * heads - 1) // tile.queries + paged.rows - paged.few,), *operands, paged.few,
            paged.rows, **self._constants(tile, heads, paged),
        )  # fmt: skip


class TritonLatentLayer(LatentLayer):
    def __init__(
        self,
        spec: LatentLayerSpec,
        weights: Mapping[str, Tensor],
        ops: BoundOps,
        facts: DeviceFacts,
        launch: Launcher,
    ) -> None:
        super().__init__(spec, weights, ops)
        self.latents = Latents(spec, weights, facts, launch)

    def fused(self, x: LatentInput, positions: Tensor, caches: Caches, plan: LatentPlan) -> Tensor:
        q = x.queries.unflatten(1, (self.spec.num_heads, self.spec.query_dim))
        self.latents.put(q, x.latent, positions, caches, plan)
        return self.latents.over(q, caches, plan, None).flatten(1)

    def write(self, latent: Tensor, caches: Caches, plan: LatentPlan) -> None:
        self.latents.put(None, latent, plan.paged.slots, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: LatentPlan, out: Tensor | None = None) -> Tensor:
        return self.latents.over(q, caches, plan, out)
