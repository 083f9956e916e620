"""What attention refuses; that it is right is the conformance kit's to say."""

from __future__ import annotations

from dataclasses import replace

from tessera.testing import AttentionCase
from tessera.testing.encoder_attention import EncoderCase
from tessera_cpu.attention import SdpaAttention
from tessera_cpu.encoder import EncoderAttention


def test_what_it_cannot_do_it_refuses() -> None:
    spec = AttentionCase(((1, 1),), window=4, softcap=30.0).spec()
    assert SdpaAttention().supports(spec) is None
    assert SdpaAttention().supports(replace(spec, kind="linear")) == "no attention over linear"


def test_the_native_kernel_of_whole_texts_says_what_it_cannot_do() -> None:
    backend, case = EncoderAttention(None), EncoderCase((3,), head_dim=32)
    assert backend.supports(case.spec()) is None
    assert backend.supports(replace(case.spec(), sinks=True)) == "no kernel for sinks"
    assert backend.supports(replace(case, dtype="float16").spec()) == "no kernel for float16"
    assert backend.supports(replace(case, head_dim=20).spec()) == "heads of 20, not a multiple of 16 up to 256"
    assert backend.supports(AttentionCase(((1, 1),)).spec()) == "no encoder attention over attention"
