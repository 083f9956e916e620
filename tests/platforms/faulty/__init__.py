"""The strict platform with one mistake each, of the kind that vendors make. FAULTS: what the kit must name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.platforms.faulty import attention, drawing, ops, steps

_MODULES = (attention, drawing, ops, steps)


def __getattr__(name: str) -> object:
    """A faulty platform by its class: "tests.platforms.faulty:EpsOutside"."""
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(name)


@dataclass(frozen=True)
class Fault:
    """subject: the op or the part of the contract at fault. kinds: of cases that are tried, the first part of their
    ids; the first of them must name it. also: subjects whose cases may fail with it."""

    subject: str
    kinds: tuple[str, ...] = ("op", "fused")
    also: tuple[str, ...] = ()
    devices: int = 1


_MIXES = ("attention", "fused", "cache")
_OF_A_LAYER = ("attention", "fused attention", "cache layout")


def _in_attention(subject: str = "attention") -> Fault:
    return Fault(subject, _MIXES, _OF_A_LAYER)


FAULTS: Mapping[str, Fault] = {
    **dict.fromkeys(
        (
            "ScaleOfDim",
            "WindowIgnored",
            "WindowTooLong",
            "SoftCapIgnored",
            "SeesAhead",
            "StaleSlotsRead",
            "BlockWrongAtEdge",
            "HeadsInTurn",
            "HeadsOfOneKeyShifted",
            "ScoresInFewBits",
            "SumOfTwo",
        ),
        _in_attention(),
    ),
    "PlanesSwapped": _in_attention("cache layout"),
    "PositionsOfTheChunk": Fault("fused attention", ("fused",)),
    "PaddingIntoBlockOne": Fault("shapes: padding", ("shapes",), ("shapes: keys",)),
    "SecondLayerApart": Fault("block copy", ("forks",)),
    **dict.fromkeys(("NormInFewBits", "EpsOutside", "OffsetLeftOut"), Fault("rms_norm")),
    **dict.fromkeys(("StrideIgnored", "BiasLeftOut"), Fault("linear")),
    **dict.fromkeys(("PairsForHalves", "KeysUnturned"), Fault("rotary")),
    **dict.fromkeys(("OutIgnored", "InputChanged", "EmptyBatchRefused"), Fault("gate")),
    "ReadsTheDevice": Fault("gate", ("reads",), ("gated_mlp",)),
    **dict.fromkeys(("AnotherEachTime", "OneWorkspace"), Fault("activation")),
    **dict.fromkeys(("BiasTwice", "LastTileUnmasked"), Fault("layer_norm")),
    "OthersRows": Fault("embedding"),
    "ValuesNormedToo": Fault("qk_norm"),
    "NotRenormalised": Fault("route"),
    "CapBeforeScale": Fault("soft_cap"),
    **dict.fromkeys(("OneSeedForAll", "TopKOneTooFew", "TopPOneTooFew"), Fault("sample")),
    "GateAndUpSwapped": Fault("gated_mlp"),
    "ResidualUnsummed": Fault("add_norm"),
    **dict.fromkeys(("OldTablesReplayed", "StaleAfterInvalidate"), Fault("graph capture", ("graphs",))),
    "KeyUnnamed": Fault("shapes: keys", ("shapes",)),
    "AllReduceAverages": Fault("all_reduce", ("collectives",), ("new_group",), devices=2),
    "GatheredBackwards": Fault("all_gather", ("collectives",), devices=2),
    "OneScaleForAllRows": Fault("scheme", ("scheme",)),
}
"""By class."""
