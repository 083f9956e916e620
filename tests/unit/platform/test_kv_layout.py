"""Where the bytes of a block are: any order of axes, split ones too, to the canonical form and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import PlatformError
from tessera.platform import (
    KV_INT8,
    AttentionBackend,
    CacheConstraints,
    FullAttentionSpec,
    KVLayout,
    Plane,
    SlidingWindowSpec,
    StateSpec,
)

TOKENS, HEADS, DIM = 8, 3, 12


def canonical(blocks: int, dtype: str) -> np.ndarray:
    """Numbers by block, token, head and dim, that say where they are."""
    return np.arange(blocks * TOKENS * HEADS * DIM, dtype=dtype).reshape(blocks, TOKENS, HEADS, DIM)


def as_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def test_a_plain_order_is_transposed() -> None:
    plane = Plane("k", "float32", (("head", HEADS), ("token", TOKENS), ("dim", DIM)))
    values = canonical(5, "float32")
    stored = as_bytes(values.transpose(0, 2, 1, 3))
    assert (KVLayout((plane,)).export(stored) == as_bytes(values)).all()


def test_a_split_axis_comes_together_with_its_slower_part_first() -> None:
    """Keys as [head, dim / 4, token, 4]: four elements of a token side by side."""
    plane = Plane("k", "int32", (("head", HEADS), ("dim", DIM // 4), ("token", TOKENS), ("dim", 4)))
    values = canonical(2, "int32")
    stored = as_bytes(values.reshape(2, TOKENS, HEADS, DIM // 4, 4).transpose(0, 2, 3, 1, 4))
    assert (KVLayout((plane,)).export(stored) == as_bytes(values)).all()


def test_planes_follow_each_other_whatever_their_dtype() -> None:
    keys = Plane("k", "float8_e4m3fn", (("head", 2), ("token", 4), ("dim", 3)))
    scales = Plane("k_scale", "float32", (("head", 2), ("token", 4)))
    layout = KVLayout((keys, scales))
    assert layout.nbytes == 24 + 32
    stored = np.random.default_rng(0).integers(0, 256, (3, layout.nbytes), dtype=np.uint8)
    moved = layout.export(stored)
    assert (moved[:, :24] == stored[:, :24].reshape(3, 2, 4, 3).transpose(0, 2, 1, 3).reshape(3, 24)).all()
    assert (moved[:, 24:] == stored[:, 24:].reshape(3, 2, 4, 4).transpose(0, 2, 1, 3).reshape(3, 32)).all()


@st.composite
def planes(draw: st.DrawFn) -> Plane:
    """Axes split at most once each, in any order."""
    axes = []
    for name, sizes in (("token", (8, 24)), ("head", (1, 3)), ("dim", (4, 12)), ("slot", (2,))):
        size = draw(st.sampled_from(sizes))
        factor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        axes += [(name, size)] if factor in (1, size) else [(name, size // factor), (name, factor)]
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int8"]))
    return Plane("p", dtype, tuple(draw(st.permutations(axes))))


@given(st.lists(planes(), min_size=1, max_size=3), st.integers(1, 4))
def test_export_moves_every_byte(parts: list[Plane], blocks: int) -> None:
    layout = KVLayout(tuple(parts))
    stored = np.random.default_rng(blocks).integers(0, 256, (blocks, layout.nbytes), dtype=np.uint8)
    moved = layout.export(stored)
    assert (np.sort(moved) == np.sort(stored)).all()


@given(planes())
def test_the_canonical_form_does_not_know_the_layout(plane: Plane) -> None:
    """Whatever the order and the splits, the same numbers end in the same places."""
    sizes = {name: int(np.prod([size for other, size in plane.axes if other == name])) for name, _ in plane.axes}
    order = [name for name in ("token", "head", "dim", "slot") if name in sizes]
    width = {"float32": 4, "bfloat16": 2, "int8": 1}[plane.dtype]
    numbers = np.arange(np.prod([*sizes.values(), width]), dtype=np.int64)
    whole = (numbers % 251).astype(np.uint8).reshape(*(sizes[name] for name in order), width)
    split = whole.reshape(*(size for name in order for other, size in plane.axes if other == name), width)
    positions = [(name, i) for name in order for i, (other, _) in enumerate(plane.axes) if other == name]
    stored = split.transpose(*(positions.index((name, i)) for i, (name, _) in enumerate(plane.axes)), len(positions))
    assert (plane.to_canonical(stored.reshape(1, -1)) == whole.reshape(1, -1)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_a_block(dtype: str) -> None:
    plane = Plane("k", dtype, (("token", 24), ("head", 2), ("dim", 12)))
    assert plane.shape == (24, 2, 12)
    assert KVLayout((plane, plane)).nbytes == 2 * 24 * 2 * 12 * {"float32": 4, "bfloat16": 2}[dtype]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_every_kind_of_fp8_is_a_byte(dtype: str) -> None:
    layout = KVLayout((Plane("k", dtype, (("head", 2), ("token", 4), ("dim", 3))),))
    assert layout.nbytes == 24
    stored = np.arange(48, dtype=np.uint8).reshape(2, 24)
    ordered = stored.reshape(2, 2, 4, 3).transpose(0, 2, 1, 3).reshape(2, 24)
    assert (layout.export(stored) == ordered).all()


class Backend(AttentionBackend):
    """With the layout that is the default."""

    name = "plain"

    def supports(self, spec: Any) -> None:
        return None

    def constraints(self, spec: Any) -> CacheConstraints:
        return CacheConstraints((TOKENS,))

    def bind(self, *given: Any) -> Any:
        raise NotImplementedError

    plan = bind


AXES = ("token", TOKENS), ("head", HEADS), ("dim", DIM)


@pytest.mark.parametrize("spec", [FullAttentionSpec(HEADS, DIM, "bfloat16"), SlidingWindowSpec(HEADS, DIM, "bfloat16")])
def test_keys_and_values_lie_by_token_head_and_dim_by_default(spec: FullAttentionSpec) -> None:
    assert Backend().kv_cache_layout(spec, TOKENS) == KVLayout(
        (Plane("k", "bfloat16", AXES), Plane("v", "bfloat16", AXES))
    )


def test_scales_come_before_keys_and_values_by_default() -> None:
    scales = tuple(Plane(name, "float32", AXES[:2]) for name in ("k_scale", "v_scale"))
    kept = tuple(Plane(name, "int8", AXES) for name in "kv")
    spec = FullAttentionSpec(HEADS, DIM, "int8", KV_INT8)
    assert Backend().kv_cache_layout(spec, TOKENS) == KVLayout((*scales, *kept))


def test_a_state_has_no_default_layout() -> None:
    with pytest.raises(PlatformError, match=r"^attention backend 'plain' needs a kv_cache_layout\(\) for StateSpec\.$"):
        Backend().kv_cache_layout(StateSpec((("state", (4,)),), "float32"), 0)


def test_an_unknown_dtype_is_one_line() -> None:
    plane = Plane("k", "float6", (("token", 4), ("dim", 3)))
    for call in (lambda: plane.nbytes, lambda: plane.to_canonical(np.zeros((1, 12), np.uint8))):
        with pytest.raises(
            PlatformError, match=r"^plane 'k' has the unknown dtype 'float6'; use float32, bfloat16, .*int8"
        ):
            call()
