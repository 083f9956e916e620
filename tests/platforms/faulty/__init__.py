"""One mistake each, of the kind that vendors make, planted into the strict platform, into fakechip and, where only it
makes a promise, into the CPU platform; those of one kind into the plain platform, which has a kernel for every op.
FAULTS: what the kit must name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tessera.testing import StrictPlatform
from tests.platforms.faulty import attention, closeness, drawing, ops, places, sizes, steps, values, ways
from tests.platforms.faulty.fault import Fault
from tests.platforms.faulty.making import Base

_MODULES = (attention, drawing, ops, steps, sizes, values, ways, closeness, places)
_BY_KIND = (sizes.SIZES, values.VALUES, ways.WAYS, closeness.CLOSENESS, places.PLACES)


def planted(name: str, base: Base) -> Base:
    """A copy of the platform with the mistake of that name. Raises AttributeError."""
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)(base)
    raise AttributeError(name)


def __getattr__(name: str) -> Base:
    """A faulty strict platform by its mistake: "tests.platforms.faulty:EpsOutside"; on_fakechip has fakechip's."""
    return planted(name, StrictPlatform)


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
            "KeysOfOneTile",
            "RowsOfOneGrid",
        ),
        _in_attention(),
    ),
    **dict.fromkeys(("SumOfTwo", "ScalesOfKeysAlone"), dataclasses.replace(_in_attention(), only="strict")),
    "PlanesSwapped": _in_attention("cache layout"),
    **dict.fromkeys(("DraftsSeeAhead", "RollbackIgnored"), Fault("drafts", ("drafts",))),
    "PlanesDense": dataclasses.replace(_in_attention(), only="fakechip"),  # strict has dense planes
    "AddressesOf32Bits": dataclasses.replace(_in_attention(), only="strict"),
    "PositionsOfTheChunk": Fault("fused attention", ("fused",)),
    "PaddingIntoBlockOne": Fault("shapes: padding", ("shapes",), ("shapes: keys",)),
    "SecondLayerApart": Fault("block copy", ("forks",)),
    "WindowLostAfterHit": Fault("prefix", ("prefix", "attention")),
    "TablesKept": Fault("preemption", ("preemption",)),
    **dict.fromkeys(("NormInFewBits", "EpsOutside", "OffsetLeftOut"), Fault("rms_norm")),
    **dict.fromkeys(("SquaresInFloat16", "HeadsNormedTogether"), Fault("rms_norm")),
    **dict.fromkeys(("StrideIgnored", "BiasLeftOut"), Fault("linear")),
    **dict.fromkeys(("TilesOf128Repeat", "IntoIgnored"), Fault("linear")),
    **dict.fromkeys(("PairsForHalves", "KeysUnturned"), Fault("rotary")),
    **dict.fromkeys(("OutIgnored", "InputChanged", "EmptyBatchRefused"), Fault("gate")),
    "ReadsTheDevice": Fault("gate", ("reads",), ("gated_mlp",)),
    **dict.fromkeys(("AnotherEachTime", "OneWorkspace"), Fault("activation")),
    **dict.fromkeys(("BiasTwice", "LastTileUnmasked"), Fault("layer_norm")),
    "OthersRows": Fault("embedding"),
    "BoundaryOneLate": Fault("segment_embedding"),
    "SumsOfManySplit": Fault("batch invariance", ("batch-invariant",), only="cpu"),
    "RowsOfOnePanel": Fault("packed_embedding"),
    "ValuesNormedToo": Fault("qk_norm"),
    **dict.fromkeys(("NotRenormalised", "BiasInWeights"), Fault("route")),
    "CapBeforeScale": Fault("soft_cap"),
    **dict.fromkeys(("OneSeedForAll", "TopKOneTooFew", "TopPOneTooFew"), Fault("sample")),
    **dict.fromkeys(("GreedyInFewBits", "IdsOf16Bits", "TablesOf64Rows"), Fault("sample")),
    "ExpertsSwappedFrom64": Fault("experts"),
    "MadeOnTheFirst": Fault("activation", ("devices",), devices=2, only="fakechip"),
    "MemoryInMB": Fault("memory", ("device",)),
    "PeakForgotten": Fault("peak", ("device",), only="fakechip"),
    "MemoryOfTheFirst": Fault("memory", ("devices",), devices=2, only="fakechip"),
    "SumOfOwnPart": Fault("tensor parallel", ("tensor-parallel",), devices=2),
    **dict.fromkeys(("MaskOfAnotherRow", "MaskOneStepLate"), Fault("masks", ("masks", "op"), ("mask_logits",))),
    "NeighboursAdapter": Fault("lora", ("lora", "op")),
    "GateAndUpSwapped": Fault("gated_mlp"),
    "ResidualUnsummed": Fault("add_norm"),
    **dict.fromkeys(("OldTablesReplayed", "StaleAfterInvalidate"), Fault("graph capture", ("graphs",))),
    "KeyUnnamed": Fault("shapes: keys", ("shapes",)),
    "PageableCopies": Fault("steps in flight", ("overlap",), only="fakechip"),
    "ResultsAwaited": Fault("steps in flight", ("overlap",), devices=2, only="fakechip"),
    "AllReduceAverages": Fault("all_reduce", ("collectives",), ("new_group",), devices=2),
    "LastRankUnsummed": Fault("all_reduce", ("collectives",), ("new_group",), devices=2),
    "AllReduceInScratch": Fault("all_reduce", ("collectives",), ("new_group",), devices=2),
    "GatheredBackwards": Fault("all_gather", ("collectives",), ("new_group",), devices=2),
    "AllReduceRounded": Fault("all_reduce", ("collectives",), ("new_group",), devices=2),
    **dict.fromkeys(("SentAsItLies", "OneInbox"), Fault("send_recv", ("collectives",), devices=2)),
    "GatherMissing": Fault("all_gather", ("collectives",), ("new_group",), devices=2),
    **dict.fromkeys(("OneScaleForAllRows", "BlocksOfTheNextRow", "BlocksOfOneRowTurned"), Fault("scheme", ("scheme",))),
    **dict.fromkeys(("ScalesOfTheNextRow", "NibblesSwapped"), Fault("packed", ("packed",))),
    **{name: fault for kind in _BY_KIND for name, fault in kind.faults.items()},
}
"""By mistake."""
