"""The strict platform: host tensors behind every hard rule that some device has, so that core cannot come to depend on
what the host forgives.

Block size 24, int32 indices, a few shape buckets whose padding is poisoned with NaN, unused cache memory and null
blocks likewise, prefill and decode in separate launches, two steps in flight, results that reach the host late,
captured launches whose tensors must keep their addresses; a product that writes where it is told, a norm that emits
scaled activations.
"""

from __future__ import annotations

from tessera.testing.strict.platform import SeparateStrictPlatform, StrictPlatform

__all__ = ["SeparateStrictPlatform", "StrictPlatform"]
