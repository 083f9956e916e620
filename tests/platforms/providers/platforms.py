"""Platforms for the conformance kit with one provider each, over its stand-in; keys and values are written by the
library's kernels, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.platform import AttentionBackend, Capabilities
from tessera_cuda.flash_attention import FLASH_ATTENTION_2, FLASH_ATTENTION_3, FlashAttention2, FlashAttention3
from tessera_cuda.flashinfer import FLASHINFER, FlashInfer
from tessera_rocm.aiter import UNIFIED, AiterAttention
from tessera_triton.facts import INTERPRETED
from tessera_triton.providers import Provider
from tessera_triton.varlen import PackageAttention
from tests.platforms.interpreted import Interpreted

STAND_INS = "tests.platforms.providers"


class Provided(Interpreted):
    capabilities = Capabilities(("bfloat16", "float16"), index_dtype="int32", async_dispatch=False)

    def _provided(self) -> PackageAttention:
        raise NotImplementedError

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (self._provided(),)


class OverFlashAttention2(Provided):
    def _provided(self) -> FlashAttention2:
        backend = FlashAttention2(INTERPRETED)
        backend.provider = Provider(backend.name, f"{STAND_INS}.flash_attn", FLASH_ATTENTION_2)
        return backend


class OverFlashAttention3(Provided):
    def _provided(self) -> FlashAttention3:
        backend = FlashAttention3(replace(INTERPRETED, arch=90))
        backend.provider = Provider(backend.name, f"{STAND_INS}.flash_attn_interface", FLASH_ATTENTION_3)
        return backend


class OfAnyHeads(FlashInfer):
    """The kit's heads are smaller than those that the package has kernels for, and nothing is compiled."""

    HEADS = tuple(range(8, 257, 8))

    def _lacks_kernels(self) -> None:
        return None


class OverFlashInfer(Provided):
    def _provided(self) -> OfAnyHeads:
        backend = OfAnyHeads(INTERPRETED)
        backend.provider = Provider(backend.name, f"{STAND_INS}.flashinfer", FLASHINFER)
        return backend


class OverAiter(Provided):
    def _provided(self) -> AiterAttention:
        backend = AiterAttention(INTERPRETED)
        backend.provider = Provider(backend.name, f"{STAND_INS}.aiter", UNIFIED)
        return backend
