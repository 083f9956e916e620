"""A mixer with a state of one tensor, as layers that have several bind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.state_weights import state_weights
from tessera.platform.attention import Caches, LayerSpec, StateSpec
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part


class StateMixer:
    """Bound over this rank's channels, which are the elements of its only head. parts: of its weights. state: the name
    and shape of its tensor."""

    def __init__(
        self,
        build: Build,
        kind: str,
        channels: int,
        parts: Mapping[str, Sequence[Part]],
        state: tuple[str, tuple[int, ...]],
        options: tuple[tuple[str, float], ...] = (),
    ) -> None:
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind=kind,
            num_heads=1,
            num_kv_heads=1,
            head_dim=channels,
            scale=1.0,
            dtype=build.dtype,
            cache=StateSpec((state,), "float32"),
            options=options,
        )
        self.mixer = build.mixer(self.spec, state_weights(build, parts))

    def __call__(self, x: Any, launch: Launch, caches: Caches) -> Tensor:
        """x: as the kind of mixer takes it."""
        return self.mixer.fused(x, launch.positions, caches, launch.plans[self.spec.layer])
