"""No kernel for GPUs has a member that looks like one of the contract and is not: each start would warn of it."""

from __future__ import annotations

import pytest

from tessera.plugins.contract import find_members
from tessera_cuda.humming import HummingOrTritonLinear
from tessera_rocm.aiter_products import AiterOrTritonLinear
from tessera_triton import TARGETS, Launcher
from tessera_triton.library import kernels
from tessera_xpu.vllm_kernels import VllmOrTritonLinear

OWN = [type(kernel) for kernel in kernels(next(iter(TARGETS.values())), Launcher()).values()]
OF_PACKAGES = [HummingOrTritonLinear, AiterOrTritonLinear, VllmOrTritonLinear]


@pytest.mark.parametrize("cls", [*OWN, *OF_PACKAGES])
def test_core_calls_whatever_looks_like_a_member_of_the_contract(cls: type) -> None:
    assert find_members(cls) == []
