"""A tape of native calls: what it does again, what it does not take, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps, GateSpec, LinearSpec, LoraSpec
from tessera.testing import REFERENCE, OpInputs
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.products import NativeProducts
from tessera_cpu.tape import Memory, NotNativeError, Tape
from tests.platforms.cpu_kernels import needs_kernels

pytestmark = needs_kernels


@pytest.fixture
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_calls_are_kept_and_done_later_for_other_rows(inference: None) -> None:
    library = native.library()
    own = NativeProducts(library)
    weights = [torch.randn(64, 32).bfloat16(), torch.randn(32, 64).bfloat16()]
    calls, packed = [own.bind(64, 32), own.bind(32, 64)], [own.pack({"weight": weight}) for weight in weights]
    x = torch.randn(5, 32).bfloat16()
    with Tape(library, 5) as tape:
        result = calls[1](calls[0](x, packed[0]).view(5, -1), packed[1])
    assert tape.whole
    result.fill_(7.0)
    tape.replay(3)
    x2 = calls[1](calls[0](x, packed[0]), packed[1])
    assert torch.equal(result[:3], x2[:3])
    assert (result[3:] == 7.0).all()
    x.copy_(torch.randn(5, 32))
    tape.replay(5)
    assert torch.equal(result, calls[1](calls[0](x, packed[0]), packed[1]))


def test_adapters_and_gates_are_kept(inference: None) -> None:
    """Slots are read when a tape is replayed."""
    platform = CpuPlatform()
    ops = BoundOps(platform.ops(REFERENCE), platform.open(0))
    spec = LoraSpec((64, 64), 32, 4, 2, "bfloat16")
    product, lora = ops.bind("linear", LinearSpec(128, 32, "bfloat16")), ops.bind("lora", spec)
    gate = ops.bind("gate", GateSpec(64, "bfloat16"))
    packed = ops.prepare("linear", LinearSpec(128, 32, "bfloat16"), {"weight": torch.randn(128, 32).bfloat16()})
    _, x, a, b, scales, slots = OpInputs(5).arguments("lora", spec)

    def adapted() -> Tensor:
        y = product(x, packed)
        lora(y, x, a, b, scales, slots)
        return gate(y)

    with Tape(native.library(), 5) as tape:
        result = adapted()
    assert tape.whole
    for own in ([0, 1, -1, 1, 0], [-1, -1, 0, 0, 1]):
        slots.copy_(torch.tensor(own))
        tape.replay(5)
        assert torch.equal(result, adapted())


def test_a_call_of_other_rows_makes_a_tape_unfit(inference: None) -> None:
    library = native.library()
    own, x = NativeProducts(library), torch.randn(5, 32).bfloat16()
    packed = own.pack({"weight": torch.randn(64, 32).bfloat16()})
    for part in (x[:4], x[1:]):
        with Tape(library, 5) as tape:
            own.bind(64, 32)(part, packed)
        assert not tape.whole
    with Tape(library, 5) as tape:
        pass
    assert not tape.whole


COMPUTED: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x + 1,
    "in another dtype": lambda x: x.to(torch.float64),
    "copied": lambda x: x.t().contiguous(),
    "copied to be looked at": lambda x: x.t().reshape(-1),
    "read": lambda x: x[0, 0].item(),
    "in place": lambda x: x.add_(1),
    "picked": lambda x: x[torch.tensor([0])],
    "filled": lambda x: torch.zeros(3),
}


@pytest.mark.parametrize("op", COMPUTED.values(), ids=COMPUTED)
def test_what_torch_computes_is_not_recorded(inference: None, op: Callable[[Tensor], Any]) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(NotNativeError), Tape(native.library(), 3):
        op(x)
    assert (x == 1).all()


def test_memory_is_taken_again_once_nobody_looks_at_it() -> None:
    memory = Memory()
    first = memory.like(torch.empty(3, 5, dtype=torch.bfloat16, device="meta"))
    part = first.view(-1)[2:4]
    assert (first.shape, first.dtype) == ((3, 5), torch.bfloat16)
    assert first.data_ptr() % 64 == 0
    place = first.data_ptr()
    del first
    assert memory.like(torch.empty(3, 5, dtype=torch.bfloat16, device="meta")).data_ptr() != place
    del part
    kept = [memory.like(torch.empty(30, dtype=torch.uint8, device="meta")) for _ in range(3)]
    assert place in {one.data_ptr() for one in kept}
    assert len({one.data_ptr() for one in kept}) == 3
