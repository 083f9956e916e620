"""Weights in fp8 whose scales belong to blocks: what is read for a shard, and blocks of fewer rows that mean the same.

A shard of outputs may cut blocks, and so may weights that are joined by their outputs: a block that begins in one of
them would continue in the next. Then the blocks get fewer rows, each with a copy of its scale, and no number changes.
Inputs are not cut: activations are rounded in groups that match the blocks, and smaller groups would round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.errors import ModelError
from tessera.platform.device import Tensor
from tessera.platform.quantization import ActSpec, Part, QuantSpec, Scheme, StoredWeight, TensorSpec, Unpacking


def stored_in_blocks(weight: Part, scales: str, block: tuple[int, int], activation: ActSpec | None) -> StoredWeight:
    """weight: a shard of "NAME.weight", [n, k] in fp8. scales: "NAME.scales" is the tensor with its scales, float32
    [n / block[0], k / block[1]], rounded up. Raises ModelError if the shard cuts a block's inputs."""
    rows, scale = _scales(weight, scales, block)
    inner = rows, block[1]
    spec = QuantSpec("fp8_e4m3", "block", block=inner)
    shapes = {"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", inner)}
    parts = {"weight": replace(weight, dtype="float8_e4m3fn"), "scale": scale}
    return StoredWeight(Scheme(spec, activation, parts=shapes), parts)


def _scales(weight: Part, scales: str, block: tuple[int, int]) -> tuple[int, Part]:
    """The rows of a block of the shard, and what to read of its scales."""
    (n, k), (rows, inputs) = weight.whole, block
    first, last = weight.columns or (0, k)
    if first % inputs or (last % inputs and last != k):
        raise ModelError(
            f"'{weight.name.removesuffix('.weight')}' is quantized in blocks of {rows} x {inputs}, which a shard of "
            f"{last - first} of its {k} inputs cuts; use another --tensor-parallel-size."
        )
    start, stop = weight.rows or (0, n)
    fewer = rows if weight.rows is None else math.gcd(rows, start, stop - start)
    begin, count = start % rows // fewer, -(-(stop - start) // fewer)
    whole = -(-n // rows), -(-k // inputs)
    bounds = None if weight.rows is None else (start // rows, -(-stop // rows))
    columns = None if weight.columns is None else (first // inputs, -(-last // inputs))
    unpacking = Unpacking(_with_fewer_rows(rows // fewer, begin, count), count)
    name, *also = (f"{one.removesuffix('.weight')}.{scales}" for one in (weight.name, *weight.also))
    fill = 1 / (448 * math.sqrt(k))
    return fewer, Part(name, whole, bounds, columns, fill, tuple(also), "float32", unpacking)


def joinable(joins: Sequence[Sequence[tuple[int, StoredWeight]]]) -> list[list[StoredWeight]]:
    """Weights that are joined by their outputs, each with its number of rows, with blocks that all of them are made of,
    so that only the last weight of a join ends within a block. Weights without blocks stay as they are."""
    blocks = [one.scheme.weight.block for join in joins for _, one in join]
    if None in blocks:
        return [[one for _, one in join] for join in joins]
    inner = [count for join in joins for count, _ in join[:-1]]
    rows = math.gcd(*(block[0] for block in blocks if block is not None), *inner)
    return [[_finer(one, count, rows) for count, one in join] for join in joins]


def _finer(stored: StoredWeight, count: int, rows: int) -> StoredWeight:
    """The same weight, of `count` rows, in blocks of fewer rows."""
    scheme, scale = stored.scheme, stored.parts["scale"]
    assert scheme.weight.block is not None
    before, inputs = scheme.weight.block
    if before == rows:
        return stored
    unpacking = Unpacking(_then(scale.unpacking, before // rows, -(-count // rows)), -(-count // rows))
    return StoredWeight(
        with_block(scheme, (rows, inputs)), {**stored.parts, "scale": replace(scale, unpacking=unpacking)}
    )


def with_block(scheme: Scheme, block: tuple[int, int]) -> Scheme:
    """The scheme with scales of other blocks."""
    parts = {**scheme.parts, "scale": TensorSpec(scheme.parts["scale"].dtype, block)}
    return replace(scheme, weight=replace(scheme.weight, block=block), parts=parts)


def _then(unpacking: Unpacking | None, copies: int, count: int) -> Callable[[Tensor], Tensor]:
    finer = _with_fewer_rows(copies, 0, count)
    return finer if unpacking is None else lambda scales: finer(unpacking.call(scales))


def _with_fewer_rows(copies: int, begin: int, count: int) -> Callable[[Tensor], Tensor]:
    """A function that repeats each row of scales, and takes `count` rows from `begin`."""
    return lambda scales: scales.repeat_interleave(copies, dim=0)[begin : begin + count]
