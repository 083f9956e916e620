"""How large tiles are, by kind of device. What a thread must hold at once decides: sums in float32, and the operands of
its matrix instructions. What does not fit the registers is spilled to memory, in the loop that should be the fastest.
`python -m tools.triton_targets` shows the registers and spills of each choice. None has been timed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tessera_triton.facts import DeviceFacts, power_of_two

_LEAST_WARPS, _MOST_WARPS = 4, 8


# ---- sums


class SumsPerThread(NamedTuple):
    """float32 sums of a tile that a thread holds: if there is one tile; if there are two; and if there are two beside
    operands that become floats in registers, as int4 does."""

    alone: int
    two: int
    unpacking: int


_SUMS_PER_THREAD: Mapping[str, SumsPerThread] = MappingProxyType(
    {
        "warp groups": SumsPerThread(64, 64, 32),
        "warps": SumsPerThread(64, 32, 16),
        "wave64": SumsPerThread(32, 32, 32),
        "wave32": SumsPerThread(64, 32, 16),
        "wave32, operands twice": SumsPerThread(64, 16, 16),
    }
)


def kind_of(facts: DeviceFacts) -> str:
    """What matters to tiles of a device's matrix instructions. Those of warp groups read operands from shared memory;
    others need them in registers. Waves of 64 have twice the registers. RDNA 3 wants each operand in both halves of a
    wave."""
    if facts.backend == "cuda":
        return "warp groups" if facts.arch in (90, 100, 103) else "warps"
    twice = facts.warp_size == 32 and str(facts.arch).startswith("gfx11")
    return "wave32, operands twice" if twice else f"wave{facts.warp_size}"


def sums_of(facts: DeviceFacts, *, two: bool = False, unpacking: bool = False) -> int:
    """The sums of a tile that a thread holds. two: there are two tiles. unpacking: and weights are int4."""
    held = _SUMS_PER_THREAD[kind_of(facts)]
    return held.unpacking if unpacking else held.two if two else held.alone


def most_sums(facts: DeviceFacts, *, two: bool = False, unpacking: bool = False) -> int:
    """The sums of the largest tile of a program."""
    return sums_of(facts, two=two, unpacking=unpacking) * facts.warp_size * _MOST_WARPS


def warps_of(facts: DeviceFacts, sums: int, *, two: bool = False, unpacking: bool = False) -> int:
    """The warps of a program with a tile of `sums`."""
    wanted = power_of_two(-(-sums // (sums_of(facts, two=two, unpacking=unpacking) * facts.warp_size)))
    return min(max(wanted, _LEAST_WARPS), _MOST_WARPS)


# ---- attention


class AttentionTile(NamedTuple):
    # the least, times heads of a group
    queries: int
    # per turn of the loop
    keys: int
    # of a program
    warps: int
    # of the loop: with 3, a turn's keys and values are copied while those of the turn before are multiplied
    stages: int


class AttentionTiles(NamedTuple):
    """Of decode.py, and of prefill.py and encoder.py, each for heads of up to 128 and of up to 256."""

    decode: AttentionTile
    decode_wide: AttentionTile
    prefill: AttentionTile
    prefill_wide: AttentionTile


_SMALL_HEADS, _NARROW_HEADS = 64, 128
_FLOAT32 = AttentionTiles(
    AttentionTile(16, 32, 4, 1), AttentionTile(16, 16, 4, 1), AttentionTile(32, 32, 4, 1), AttentionTile(32, 16, 4, 1)
)
_FLOAT32_OF_WAVE32 = AttentionTiles(  # without matrix instructions, threads hold whole rows of both operands
    AttentionTile(16, 16, 8, 1), AttentionTile(16, 16, 16, 1), AttentionTile(16, 16, 8, 1), AttentionTile(16, 16, 16, 1)
)
_ATTENTION: Mapping[str, AttentionTiles] = MappingProxyType(
    {
        "warp groups": AttentionTiles(
            AttentionTile(16, 64, 4, 3),
            AttentionTile(16, 32, 4, 3),
            AttentionTile(128, 64, 8, 3),
            AttentionTile(128, 32, 8, 3),
        ),
        "warps": AttentionTiles(
            AttentionTile(16, 64, 4, 3),
            AttentionTile(16, 32, 4, 3),
            AttentionTile(128, 32, 8, 3),
            AttentionTile(64, 32, 8, 3),
        ),
        "wave64": AttentionTiles(
            AttentionTile(16, 64, 4, 1),
            AttentionTile(16, 32, 4, 1),
            AttentionTile(128, 64, 4, 1),
            AttentionTile(64, 32, 4, 1),
        ),
        "wave32": AttentionTiles(
            AttentionTile(16, 32, 8, 1),
            AttentionTile(16, 16, 8, 1),
            AttentionTile(64, 32, 8, 1),
            AttentionTile(64, 16, 8, 1),
        ),
        "wave32, operands twice": AttentionTiles(
            AttentionTile(16, 16, 4, 1),
            AttentionTile(16, 16, 16, 1),
            AttentionTile(32, 16, 8, 1),
            AttentionTile(64, 16, 16, 1),
        ),
    }
)


_DECODING = 2
"""How many programs of decode.py should find room on a processor. While one takes a maximum or a sum over scores, which
keeps its matrix instructions idle, the other has work."""
_FEWEST_KEYS = 16
_FEWEST_QUERIES = 32  # of a tile of encoder.py, times heads of a group; each size is compiled while an engine starts
_BYTES: Mapping[str, int] = MappingProxyType({"bfloat16": 2, "float16": 2, "float32": 4})


def prefill_tile(facts: DeviceFacts, dtype: str, head_dim: int, group: int, key_bytes: int) -> AttentionTile:
    """group: heads of queries that share one of keys. key_bytes: of a number of a key in the cache."""
    tiles = _tiles(facts, dtype)
    tile = tiles.prefill if head_dim <= _NARROW_HEADS else tiles.prefill_wide
    tile = tile._replace(queries=max(tile.queries, power_of_two(group)))
    if head_dim <= _SMALL_HEADS and facts.arch in (100, 103):  # a third buffer's places do not fit the registers there
        tile = tile._replace(stages=2)
    return _fitting(tile, facts.shared_bytes, _BYTES[dtype], head_dim, key_bytes)


def encoder_tile(
    facts: DeviceFacts, dtype: str, head_dim: int, group: int, width: int, *, biased: bool
) -> AttentionTile:
    """As prefill_tile(), with no more queries than the longest row of the launch needs, which has `width` tokens.
    biased: scores have a bias, whose numbers are copied ahead too."""
    tile = prefill_tile(facts, dtype, head_dim, group, _BYTES[dtype])
    if dtype != "float32":
        if head_dim <= _SMALL_HEADS and kind_of(facts) == "warps":
            tile = tile._replace(keys=64)
        elif head_dim > _NARROW_HEADS and facts.arch in (100, 103):  # masks of more queries do not fit the registers
            tile = tile._replace(queries=max(64, power_of_two(group)))
        if head_dim > _SMALL_HEADS and biased:  # nor do the places of more biases
            tile = tile._replace(keys=max(tile.keys // 2, _FEWEST_KEYS))
    tile = _fitting(tile, facts.shared_bytes, _BYTES[dtype], head_dim, _BYTES[dtype], biased=biased)
    queries = min(max(power_of_two(width * group), _FEWEST_QUERIES), tile.queries)
    return tile._replace(queries=queries, warps=max(tile.warps * queries // tile.queries, _LEAST_WARPS))


def decode_tile(facts: DeviceFacts, dtype: str, head_dim: int, queries: int, key_bytes: int) -> AttentionTile:
    """queries: at least so many, times heads of a group. key_bytes: of a number of a key in the cache."""
    tiles = _tiles(facts, dtype)
    tile = tiles.decode if head_dim <= _NARROW_HEADS else tiles.decode_wide
    tile = tile._replace(queries=max(tile.queries, power_of_two(queries)))
    return _fitting(tile, facts.shared_bytes // _DECODING, _BYTES[dtype], head_dim, key_bytes)


def _tiles(facts: DeviceFacts, dtype: str) -> AttentionTiles:
    kind = kind_of(facts)
    if dtype == "float32":
        return _FLOAT32_OF_WAVE32 if kind.startswith("wave32") else _FLOAT32
    return _ATTENTION[kind]


def _fitting(
    tile: AttentionTile, room: int, element: int, head_dim: int, key_bytes: int, *, biased: bool = False
) -> AttentionTile:
    """A tile with fewer keys a turn where copies ahead do not find room beside queries and weights, which have elements
    of so many bytes. room: bytes of shared memory. biased: each score's bias, a float32, is copied ahead too. With one
    stage nothing is."""
    dim, ahead = power_of_two(head_dim), tile.stages - 1
    scores = tile.queries * _BYTES["float32"] * biased

    def taken(keys: int) -> int:
        return tile.queries * (dim + keys) * element + ahead * keys * (2 * dim * key_bytes + scores)

    keys = tile.keys
    while ahead and keys > _FEWEST_KEYS and taken(keys) > room:
        keys //= 2
    return tile._replace(keys=keys)


class CopiedTile(NamedTuple):
    """Of copied.py."""

    # of a program
    queries: int
    # of a turn of its loop
    keys: int
    # before the compiler adds some
    warps: int
    # of its pipeline
    stages: int
    # whether its warps are specialized
    specializes: bool


_HOPPER = 90


def tiles_that_copy(facts: DeviceFacts, head_dim: int, *, specialize: bool) -> tuple[CopiedTile, CopiedTile] | None:
    """Of launches of few queries, and of many; None if keys and values are not copied so. specialize: warps, where that
    helps.

    On sm_90, two groups of four warps multiply half of the queries each. 64, which an instruction takes at once, have
    no halves: both specialized groups would multiply all of them. On sm_100 and 103, one warp multiplies, and more
    warps than four hold the scores of 128 queries; specialized programs spill there where heads are wide."""
    if not facts.descriptors or kind_of(facts) != "warp groups":
        return None
    wide = head_dim > _NARROW_HEADS
    keys, stages = (32, 2) if wide else (64, 3)
    if facts.arch == _HOPPER:
        warps = 4 if specialize else 8
        return CopiedTile(64, keys, 4, stages, False), CopiedTile(128, keys, warps, stages, specialize)
    specialize = specialize and not wide
    return CopiedTile(64, keys, 4, stages, specialize), CopiedTile(128, keys, 8, stages, specialize)


class LatentTile(NamedTuple):
    """Of absorbed.py."""

    # of a program, times heads
    queries: int
    # per turn of the loop
    latents: int
    # elements of a latent's first part that scores take at a time
    piece: int
    # of a program
    warps: int
    # of the loop: with 3, a turn's latents are copied while those of the turn before are multiplied
    stages: int


_WHOLE = 512  # the largest first part of a latent
_LATENTS: Mapping[str, tuple[LatentTile, LatentTile]] = MappingProxyType(
    {
        "warp groups": (LatentTile(16, 32, _WHOLE, 4, 3), LatentTile(64, 32, _WHOLE, 8, 3)),
        "warps": (LatentTile(16, 32, _WHOLE, 4, 3), LatentTile(32, 32, _WHOLE, 8, 3)),
        "wave64": (LatentTile(16, 32, 128, 4, 1), LatentTile(64, 32, 64, 8, 1)),
        "wave32": (LatentTile(16, 16, 128, 8, 1), LatentTile(32, 16, 64, 16, 1)),
        "wave32, operands twice": (LatentTile(16, 16, 64, 16, 1), LatentTile(32, 16, 64, 16, 1)),
        "float32": (LatentTile(16, 16, 64, 8, 1), LatentTile(16, 16, 64, 8, 1)),
        "float32 of wave32": (LatentTile(16, 16, 32, 16, 1), LatentTile(16, 16, 32, 16, 1)),
    }
)
"""Of few and of many queries times heads, by kind of device, for latents of up to 512 and 64. Operands that are read
from shared memory may be whole; registers hold them in pieces."""


def latent_tile(
    facts: DeviceFacts, dtype: str, sizes: tuple[int, int], pairs: int, *, selected: bool = False
) -> LatentTile:
    """sizes: of the two parts of a latent, as powers of two. pairs: queries times heads of a row. selected: latents do
    not lie beside each other."""
    kind = kind_of(facts)
    if dtype == "float32":
        kind = "float32 of wave32" if kind.startswith("wave32") else "float32"
    few, many = _LATENTS[kind]
    tile = few if pairs <= few.queries else many
    width, ahead, latents = sum(sizes), tile.stages - 1, tile.latents
    if selected and kind == "warp groups" and tile is many:  # places of more do not fit the registers
        latents //= 2

    def taken(latents: int) -> int:
        return (tile.queries * (width + latents) + ahead * latents * width) * _BYTES[dtype]

    while ahead and latents > _FEWEST_KEYS and taken(latents) > facts.shared_bytes:
        latents //= 2
    return tile._replace(latents=latents, piece=min(tile.piece, sizes[0]))
