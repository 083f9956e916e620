"""Mixers with heads that several threads take in parts; heads of fewer elements are the conformance kit's to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps
from tessera.testing import REFERENCE
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.state import KINDS, Kind, Row, StateTrial
from tessera_cpu import native
from tessera_cpu.delta_net import GatedDeltaNet
from tessera_cpu.mamba2 import Mamba2
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

pytestmark = needs_kernels

WIDE = 40


def wider(name: str, heads: int, kv_heads: int, head_dim: int, **differs: Any) -> Kind:
    """A kind that the kit knows, with other sizes."""
    plain = next(kind for kind in KINDS if kind.name == name)
    return replace(plain, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **differs)


WIDER = (
    wider(
        "gated_delta_net", 4, 2, WIDE, inputs=4 * 37 + 2 * 4 * WIDE + 8,
        state=[("conv", (148 + 4 * WIDE, 3)), ("state", (4, 37, WIDE))],
        options=[("key_dim", 37), ("kernel", 4), ("eps", 1e-6), ("beta_scale", 1.0)],
        weights={"conv": (148 + 4 * WIDE, 4), "a_log": (4,), "dt_bias": (4,), "norm": (WIDE,)},
    ),
    wider(
        "mamba2", 3, 1, WIDE, inputs=6 * WIDE + 40 + 3,
        state=[("conv", (3 * WIDE + 40, 3)), ("state", (3, WIDE, 20))],
        options=[("state_dim", 20), ("kernel", 4), ("eps", 1e-5)],
        weights={
            "conv": (3 * WIDE + 40, 4), "conv_bias": (3 * WIDE + 40,),
            "a_log": (3,), "d": (3,), "dt_bias": (3,), "norm": (3 * WIDE,),
        },
    ),
    wider(
        "short_convolution", 1, 1, 200, inputs=600,
        state=[("conv", (200, 2))], options=[("kernel", 3), ("bias", 0)], weights={"conv": (200, 3)},
    ),
)  # fmt: skip
STEPS = (Row(1, 7, 0), Row(2, 5, 0)), (Row(1, 1, 7), Row(2, 1, 5)), (Row(2, 3, 6), Row(1, 42, 8))


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("kind", WIDER, ids=lambda kind: kind.name)
def test_a_row_has_one_result_in_any_chunks_and_batch_and_on_any_threads(name: str, kind: Kind) -> None:
    torch.manual_seed(4)
    requests = {slot: torch.randn(50, kind.inputs).bfloat16() for slot in (1, 2)}

    def computed(trial: StateTrial, rows: Sequence[Row]) -> Tensor:
        """Of the request in slot 1."""
        parts = [requests[row.slot][row.before : row.before + row.tokens] for row in rows]
        mixed = trial.computed(rows, torch.cat(parts)).split([row.tokens for row in rows])
        return mixed[[row.slot for row in rows].index(1)]

    with kernels(name):
        platform, spec = CpuPlatform(), kind.spec("bfloat16")
        ops = BoundOps(platform.ops(REFERENCE), platform.open(0), batch_invariant=True)
        backend = next(one for one in platform.attention_backends() if one.supports(spec) is None)
        assert backend.batch_invariant(spec) is None
        alone, split = (StateTrial(backend, kind, "bfloat16", ops, "int32") for _ in range(2))
        native.use_threads(native.library(), 1)
        whole = computed(alone, [Row(1, 50, 0)])
        native.use_threads(native.library(), 5)
        parts = [computed(split, rows) for rows in STEPS]
        native.use_threads(native.library(), torch.get_num_threads())
        assert torch.equal(torch.cat(parts), whole)
    expected = computed(StateTrial(kind.reference(), kind, "bfloat16", ops, "int32"), [Row(1, 50, 0)])
    assert difference(whole, expected, TOLERANCES["bfloat16"]) is None


def test_what_no_kernel_takes_is_refused() -> None:
    delta, mamba, _ = (kind.spec("bfloat16") for kind in WIDER)
    assert GatedDeltaNet(None).supports(mamba) == "no gated delta net over mamba2"
    assert GatedDeltaNet(None).supports(replace(delta, head_dim=257)) == "heads of 257, more than 256"
    assert Mamba2(None).supports(replace(mamba, dtype="float16")) == "no kernel for float16 with a state in float32"
    longer = tuple(("kernel", 9) if name == "kernel" else (name, value) for name, value in mamba.options)
    assert Mamba2(None).supports(replace(mamba, options=longer)) == "a convolution over 9 tokens, more than 8"
