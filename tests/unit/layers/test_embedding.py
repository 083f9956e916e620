"""Where a tied embedding looks its rows up."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.layers.embedding import may_look_up
from tessera.platform import BoundOps, Device, Kernel, LinearSpec, PackedEmbeddingSpec, replace
from tessera.platform.ops import HotCall, Wrapper
from tessera.testing import REFERENCE, ReferencePlatform, candidates

PLAIN = PackedEmbeddingSpec(LinearSpec(40, 16, "float32"))
INT8 = PackedEmbeddingSpec(LinearSpec(40, 16, "float32", candidates("int8", 16)[0]))


class Takes(Kernel[Any]):
    """Whatever it is asked for; quantized: that too."""

    def __init__(self, *, quantized: bool = False) -> None:
        self.quantized = quantized

    def supports(self, spec: Any) -> str | None:
        return None if self.quantized else super().supports(spec)

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        raise AssertionError("nothing is bound to answer")


PLACES = {
    "nobody has a kernel: a plain table is the weight": ({}, False, True),
    "a kernel packs the plain head": ({"linear": Takes()}, False, True),
    "a kernel packs any head": ({"linear": Takes(quantized=True)}, False, False),
    "kernels for the plain head": ({"linear": Takes(), "packed_embedding": Takes()}, True, True),
    "kernels for any head": (
        {"linear": Takes(quantized=True), "packed_embedding": Takes(quantized=True)}, True, True,
    ),
}  # fmt: skip


def ask(kernels: dict[str, Kernel[Any]], spec: PackedEmbeddingSpec, **options: Any) -> bool:
    return may_look_up(BoundOps(replace(REFERENCE, **kernels), ReferencePlatform().open(0), **options), spec)


@pytest.mark.parametrize(("kernels", "plain", "int8"), PLACES.values(), ids=PLACES)
def test_rows_are_looked_up_where_whoever_looks_can_read_them(
    kernels: dict[str, Kernel[Any]], plain: bool, int8: bool
) -> None:
    assert (ask(kernels, PLAIN), ask(kernels, INT8)) == (plain, int8)


def test_a_feature_that_wraps_the_embedding_gets_a_table() -> None:
    kernels = {"packed_embedding": Takes(quantized=True)}
    assert ask(kernels, INT8)
    assert not ask(kernels, INT8, wrappers={"embedding": Wrapper(lambda spec, call: call)})
