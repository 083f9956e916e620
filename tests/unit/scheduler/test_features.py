"""Features are asked for the masks of all their requests at once, each for its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.platform.feature import EngineFeature, FeatureState
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler.features import EngineFeatures

FEATURES = {2: 0b1110, 3: 0b0111}


class Allowing(FeatureState):
    masks = True

    def __init__(self, bits: int) -> None:
        self.bits = np.int32(bits)

    def mask(self, bits: Array) -> None:
        bits &= self.bits


class EveryNth(EngineFeature):
    """Of requests whose key its number divides. asked: the number of requests of each call."""

    def __init__(self, number: int) -> None:
        self.number, self.asked = number, list[int]()

    def begin(self, request: Request) -> Allowing | None:
        return None if request.key % self.number else Allowing(FEATURES[self.number])

    def mask(self, states: Sequence[FeatureState], bits: Array) -> None:
        self.asked.append(len(states))
        super().mask(states, bits)


def test_each_feature_is_asked_once_for_the_requests_that_it_restricts() -> None:
    halves = [EveryNth(number) for number in FEATURES]
    features = EngineFeatures(halves, 40)
    begun = [features.begin(Request(key, "", int32([1]), SamplingParams(), 5, 0)) for key in (2, 3, 4, 6)]
    bits = features.all_allowed(4)
    features.mask(begun, bits)
    assert bits.tolist() == [[0b1110] * 2, [0b0111] * 2, [0b1110] * 2, [0b0110] * 2]
    assert [half.asked for half in halves] == [[3], [2]]
    features.mask(begun[:1], bits[:1])
    assert [half.asked for half in halves] == [[3, 1], [2]], "a feature with no request among them is not asked"
