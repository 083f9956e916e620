"""A platform with a kernel for every op, and variants of it that each leave something to the reference."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform import AttentionBackend, LayerSpec, OpSet, Reason, replace
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform

PATH = "tests.platforms.whole"


class OwnAttention(ReferenceAttention):
    name = "own"
    fallback = False


class ShortSighted(OwnAttention):
    name = "short-sighted"

    def supports(self, spec: LayerSpec) -> Reason | None:
        return "no window" if spec.window is not None else super().supports(spec)


class WholePlatform(ReferencePlatform):
    name = "whole"

    def ops(self, reference: OpSet) -> OpSet:
        plain = (reference[name] for name in reference.names() if not reference[name].parts)
        return replace(reference, **{op.name: op.reference for op in plain if op.reference is not None})

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (OwnAttention(),)


class WithoutAttention(WholePlatform):
    def attention_backends(self) -> Sequence[AttentionBackend]:
        return ()


class WithoutWindows(WholePlatform):
    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (ShortSighted(),)


class WithoutGate(WholePlatform):
    def ops(self, reference: OpSet) -> OpSet:
        return OpSet({**super().ops(reference).ops, "gate": reference["gate"]})
