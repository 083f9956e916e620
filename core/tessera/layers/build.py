"""What building a model needs: bound ops, this rank's share, the attention backends; and what it leaves behind:
parameters, attention layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from tessera.errors import ModelError, PlatformError
from tessera.layers.weights import Parameter
from tessera.platform.attention import (
    AttentionBackend,
    FullAttentionSpec,
    LayerSpec,
    Mixer,
    SlidingWindowSpec,
    layer_place,
)
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device, Reason
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import QuantSpec
from tessera.quantization.negotiation import AsTheyAre, Weights

TENSOR_GROUP = "tensor"


@dataclass(frozen=True)
class BoundMixer:
    """An attention layer as bound: by whom, for what. declined: backends that were asked before, and what they said."""

    spec: LayerSpec
    backend: AttentionBackend
    mixer: Mixer
    declined: tuple[tuple[str, Reason], ...] = ()


class Build:
    """Made for one model on one rank. backends: by preference. num_states: layers that keep something are numbered as
    they are bound. weights: what products do with theirs. kv: how keys and values are kept in fewer bits; None: in
    dtype. fallbacks: layers of each kind that the reference does."""

    def __init__(
        self,
        ops: BoundOps,
        device: Device,
        dtype: str,
        backends: Sequence[AttentionBackend],
        group: Communicator | None = None,
        weights: Weights | None = None,
        kv: QuantSpec | None = None,
    ) -> None:
        self.ops, self.device, self.dtype, self.backends = ops, device, dtype, backends
        self.group = group or Alone()
        self.weights: Weights = weights or AsTheyAre()
        self.kv = kv
        self.parameters: list[Parameter] = []
        self.mixers: list[BoundMixer] = []
        self.fallbacks: Counter[str] = Counter()

    @property
    def reduce(self) -> str | None:
        """The group over which partial sums become whole; None where there is but one rank."""
        return TENSOR_GROUP if self.group.size > 1 else None

    def register_parameter(self, parameter: Parameter) -> Parameter:
        self.parameters.append(parameter)
        return parameter

    def cache(self, kv_heads: int, head_dim: int, window: int | None) -> FullAttentionSpec:
        """What a layer of attention keeps."""
        shape = kv_heads, head_dim, self.dtype if self.kv is None else self.kv.dtype, self.kv
        return FullAttentionSpec(*shape) if window is None else SlidingWindowSpec(*shape, window=window)

    def shard(self, size: int, what: str) -> tuple[int, int]:
        """This rank's part of `size` things that divide evenly. Raises ModelError where they do not."""
        ranks = self.group.size
        if size % ranks:
            raise ModelError(f"{what} ({size}) is not divisible by --tensor-parallel-size {ranks}.")
        each = size // ranks
        return self.group.rank * each, (self.group.rank + 1) * each

    def mixer(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> Mixer:
        """The first backend that can do the layer, bound to it. weights may be filled until the model is loaded. Raises
        PlatformError where there is none, or but the reference and that is forbidden."""
        declined: list[tuple[str, Reason]] = []
        for backend in self.backends:
            reason = backend.supports(spec)
            if reason is None:
                if backend.fallback:
                    self._fall_back(spec, declined)
                mixer = backend.bind(spec, weights, self.ops, self.device)
                self.mixers.append(BoundMixer(spec, backend, mixer, tuple(declined)))
                return mixer
            declined.append((backend.name, reason))
        raise PlatformError(f"no attention backend supports layer {spec.layer} ({_said(declined)}).")

    def _fall_back(self, spec: LayerSpec, declined: Sequence[tuple[str, Reason]]) -> None:
        if self.kv is not None and declined and isinstance(spec.cache, FullAttentionSpec):
            raise PlatformError(
                f"--kv-cache-dtype {self.kv.dtype} is not supported here: layer {spec.layer} ({layer_place(spec)}) "
                f"would run on the reference ({_said(declined)}); remove the flag."
            )
        if self.ops.no_fallback:
            reasons = _said(declined) if declined else "the platform has no backend of its own"
            raise PlatformError(
                f"{spec.kind} of layer {spec.layer} ({layer_place(spec)}) would run on the reference ({reasons}), "
                "which --no-fallback forbids; give it a backend, or remove the flag."
            )
        self.fallbacks[spec.kind] += 1


def _said(declined: Sequence[tuple[str, Reason]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in declined)
