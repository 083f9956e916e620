"""Draws tokens. It never sorts the vocabulary: a draw is the largest of the logits plus noise (SampleSpec), and what
the filters keep is a prefix of the stable order (docs/decisions/randomness.md), so it is a bound of orders (logits.py).

The first kernel draws from each tile as if there were no filters, and the second takes the best of the tiles. Where a
row has filters, one program then walks through it:

- min_p is a bound of the weights exp(logit - largest).
- A draw that the filters keep is the one among what they keep, since it is the largest of more. So they are checked
  after the draw: the entries before it are counted and weighed. If top_k or top_p excludes it, they exclude what comes
  behind it, and the row is drawn again, with the same noise, among what comes before it. That takes about
  1 + ln(1 / p) draws where the filters keep a part p of the weights.
- top_p after top_k needs the weight of the k largest. The k-th is found by a radix selection: four passes count the
  entries by 8 bits of their value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LogprobsSpec, Sampled, SampleSpec, SamplingRows
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.logits import (
    NOTHING,
    LogProbabilities,
    _above,
    _entry_of,
    _mass_of_tiles,
    _ordered,
    _value_of,
    as_rows,
    sizes_of,
    too_many,
)

_GOLDEN = tl.constexpr(0x9E3779B9)


# ---- noise


@triton.jit
def _mixed(x):
    """uint32; shifts bring in zeros, and products wrap."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def _keys(seed, position, row):
    """The two keys of a row's noise. seed [S, 2], position [S] int32."""
    low = tl.load(seed + row * 2).to(tl.uint32, bitcast=True)
    high = tl.load(seed + row * 2 + 1).to(tl.uint32, bitcast=True)
    place = tl.load(position + row).to(tl.uint32, bitcast=True)
    key = _mixed(_mixed(low ^ _GOLDEN) + place)
    return key, _mixed(_mixed(high + place) ^ key)


@triton.jit
def _noise(entry, key, other):
    """Gumbel noise, as SampleSpec defines it."""
    bits = _mixed(_mixed((entry.to(tl.uint32, bitcast=True) * _GOLDEN) ^ key) + other) >> 9
    uniform = (bits.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


# ---- without filters


@triton.jit
def _draw_tiles(
    logits, stride, temperature, seed, position, drawn, largest, masses, n, tiles,
    DRAWS: tl.constexpr, FILTERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """drawn [S, tiles]: the orders of the best scores; with FILTERS also largest [S, tiles], the largest orders of the
    scaled logits, and masses [S, tiles], the sums of exp(scaled logit - largest). DRAWS: some row is not greedy."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = tile * TILE + tl.arange(0, TILE)
    inside = entry < n
    value = tl.load(logits + row * stride + entry, mask=inside, other=-float("inf")).to(tl.float32)
    score = value
    if DRAWS:
        heat = tl.load(temperature + row)
        if heat > 0:
            key, other = _keys(seed, position, row)
            value = tl.div_rn(value, heat)
            score = value + _noise(entry, key, other)
    place = row * tiles + tile
    tl.store(drawn + place, tl.max(tl.where(inside, _ordered(score, entry), NOTHING), 0))
    if FILTERS:
        first = tl.max(tl.where(inside, _ordered(value, entry), NOTHING), 0)
        tl.store(largest + place, first)
        tl.store(masses + place, tl.sum(tl.where(inside, _above(value, _value_of(first)), 0.0), 0))


@triton.jit
def _take_best(drawn, tokens, tiles, TILES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    best = tl.max(tl.load(drawn + row * tiles + tile, mask=tile < tiles, other=NOTHING), 0)
    tl.store(tokens + row, _entry_of(best))


# ---- with filters


@triton.jit
def _scaled(logits, heat, start, n, BLOCK: tl.constexpr):
    """The scaled logits of a block, their numbers, and their orders: NOTHING beyond the end."""
    entry = start + tl.arange(0, BLOCK)
    value = tl.load(logits + entry, mask=entry < n, other=-float("inf")).to(tl.float32)
    value = tl.div_rn(value, heat)
    return value, entry, tl.where(entry < n, _ordered(value, entry), NOTHING)


@triton.jit
def _order_of(logits, heat, entry):
    """The order of one entry, and its scaled logit."""
    value = tl.div_rn(tl.load(logits + entry).to(tl.float32), heat)
    return _ordered(value, entry), value


@triton.jit
def _kth_largest(logits, heat, n, k, BLOCK: tl.constexpr):
    """The order of the k-th largest entry. k: from 1 to n."""
    digit = tl.arange(0, 256)
    known = tl.zeros([], tl.uint32)  # the value's leading bits that are known, such that larger is more
    missing = k  # how many of the entries with these bits are among the k
    equal = n  # how many there are
    shift = tl.full([], 24, tl.uint32)
    for _level in range(4):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, n, BLOCK):
            _value, entry, order = _scaled(logits, heat, start, n, BLOCK)
            bits = (order >> 32).to(tl.int32).to(tl.uint32, bitcast=True) ^ 0x80000000
            like = (entry < n) & (((bits >> shift) >> 8) == known)
            counts += tl.histogram(((bits >> shift) & 255).to(tl.int32), 256, mask=like)
        least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts  # with this digit or a larger one
        found = tl.sum((least >= missing).to(tl.int32), 0) - 1
        missing -= tl.sum(tl.where(digit > found, counts, 0), 0)
        equal = tl.sum(tl.where(digit == found, counts, 0), 0)
        known = (known << 8) | found.to(tl.uint32)
        shift -= 8
    key = (known ^ 0x80000000).to(tl.int32, bitcast=True)
    bound = key.to(tl.int64) << 32
    if missing < equal:
        last = tl.zeros([], tl.int32)
        seen = tl.zeros([], tl.int32)
        for start in range(0, n, BLOCK):
            _value, entry, order = _scaled(logits, heat, start, n, BLOCK)
            like = (entry < n) & ((order >> 32).to(tl.int32) == key)
            number = seen + tl.cumsum(like.to(tl.int32), 0)
            last = tl.maximum(last, tl.max(tl.where(like & (number <= missing), entry, 0), 0))
            seen += tl.sum(like.to(tl.int32), 0)
        bound = bound | (0x7FFFFFFF - last).to(tl.int64)
    return bound


@triton.jit
def _draw_again(logits, heat, key, other, n, peak, bound, least, BLOCK: tl.constexpr):
    """The best entry of those whose order is above `bound`, and that weigh at least `least`."""
    best = tl.full([BLOCK], NOTHING, tl.int64)
    for start in range(0, n, BLOCK):
        value, entry, order = _scaled(logits, heat, start, n, BLOCK)
        kept = (order > bound) & (_above(value, peak) >= least)
        # Most blocks have nothing that is kept, and noise is the most work.
        if tl.max(kept.to(tl.int32), 0) > 0:
            score = _ordered(value + _noise(entry, key, other), entry)
            best = tl.maximum(best, tl.where(kept, score, NOTHING))
    return _entry_of(tl.max(best, 0))


@triton.jit
def _weigh(logits, heat, n, peak, bound, least, BLOCK: tl.constexpr):
    """The number and the weight of the entries whose order is above `bound`, and that weigh at least `least`."""
    number = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        value, _entry, order = _scaled(logits, heat, start, n, BLOCK)
        weight = _above(value, peak)
        kept = (order > bound) & (weight >= least)
        number += kept.to(tl.int32)
        mass += tl.where(kept, weight, 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit
def _filter(
    logits, stride, temperature, top_k, top_p, min_p, seed, position, drawn, largest, masses, tokens, n, tiles,
    TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes the best of the tiles of a row, and draws again until the filters keep the token."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    place = row * tiles + tile
    token = _entry_of(tl.max(tl.load(drawn + place, mask=tile < tiles, other=NOTHING), 0))
    first = tl.max(tl.load(largest + place, mask=tile < tiles, other=NOTHING), 0)
    heat, k = tl.load(temperature + row), tl.load(top_k + row)
    p, least = tl.load(top_p + row), tl.load(min_p + row)
    peak = _value_of(first)
    counts, weighs = (k > 0) & (k < n), p < 1.0
    # Noise does not matter beside infinity or NaN, and filters leave them.
    finite = (peak > -float("inf")) & (peak < float("inf"))
    if finite & (heat > 0) & (counts | weighs | (least > 0)):
        logits += row * stride
        key, other = _keys(seed, position, row)
        bound = tl.full([], NOTHING + 1, tl.int64)  # what is kept lies above it
        if counts & weighs:
            bound = _kth_largest(logits, heat, n, k, BLOCK) - 1
        total = tl.zeros([], tl.float32)
        if weighs:
            if counts | (least > 0):
                _number, total = _weigh(logits, heat, n, peak, bound, least, BLOCK)
            else:
                total = _mass_of_tiles(largest + row * tiles, 1, masses + row * tiles, tiles, peak, TILES)
        order, value = _order_of(logits, heat, token)
        if (order <= bound) | (_above(value, peak) < least):
            token = _draw_again(logits, heat, key, other, n, peak, bound, least, BLOCK)
            order, value = _order_of(logits, heat, token)
        checks = (counts | weighs) & (order < first)
        while checks:
            number, mass = _weigh(logits, heat, n, peak, order, least, BLOCK)
            checks = (counts & (number >= k)) | (weighs & (mass >= p * total))
            if checks:
                token = _draw_again(logits, heat, key, other, n, peak, order, least, BLOCK)
                order, value = _order_of(logits, heat, token)
                checks = order < first
    tl.store(tokens + row, token)


@dataclass(frozen=True)
class Sample(Kernel[SampleSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: SampleSpec) -> str | None:
        return too_many(spec.vocab, spec.logprobs, self.facts)

    def bind(self, spec: SampleSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        sizes = sizes_of(self.facts, spec.vocab)
        tiles = triton.cdiv(spec.vocab, sizes.tile)
        filters = spec.filters and not spec.greedy
        report = LogProbabilities(self.launch, sizes)

        def sample(logits: Tensor, rows: SamplingRows) -> Sampled:
            some = as_rows(logits)
            temperature, top_k, top_p, min_p, seed, position = (part.contiguous() for part in rows)
            drawn = torch.empty(len(some), tiles, dtype=torch.int64, device=some.device)
            largest, masses = drawn, drawn
            if filters:
                largest, masses = torch.empty_like(drawn), torch.empty_like(drawn, dtype=torch.float32)
            tokens = torch.empty(len(some), dtype=torch.int32, device=some.device)
            if len(some):
                self.launch(
                    _draw_tiles, (len(some), tiles), some, some.stride(0), temperature, seed, position, drawn, largest,
                    masses, spec.vocab, tiles,
                    DRAWS=not spec.greedy, FILTERS=filters, TILE=sizes.tile, num_warps=sizes.tile_warps,
                )  # fmt: skip
            if len(some) and filters:
                self.launch(
                    _filter, (len(some),), some, some.stride(0), temperature, top_k, top_p, min_p, seed, position,
                    drawn, largest, masses, tokens, spec.vocab, tiles,
                    TILES=power_of_two(tiles), BLOCK=sizes.block, num_warps=sizes.block_warps,
                )  # fmt: skip
            elif len(some):
                self.launch(
                    _take_best, (len(some),), drawn, tokens, tiles, TILES=power_of_two(tiles), num_warps=1
                )  # fmt: skip
            if spec.logprobs < 0:
                return Sampled(tokens)
            return Sampled(tokens, *report(LogprobsSpec(spec.vocab, spec.logprobs), some, tokens))

        return sample
