"""What attention on torch's kernels refuses; that it is right is the conformance kit's to say."""

from __future__ import annotations

from dataclasses import replace

from tessera.testing import AttentionCase
from tessera_cpu.attention import SdpaAttention


def test_what_it_cannot_do_it_refuses() -> None:
    spec = AttentionCase(((1, 1),), window=4, softcap=30.0).spec()
    assert SdpaAttention().supports(spec) is None
    assert SdpaAttention().supports(replace(spec, kind="linear")) == "no attention over linear"
