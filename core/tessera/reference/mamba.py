"""Mamba over two StateSpecs: the reference definition of a selective state-space model (arXiv:2312.00752), with a decay
for each channel and element of its state.

A first mixer computes SiLU of a short causal convolution of each channel. From its results the model projects dt, B and
C, which the second mixer takes with them. There the state S [channels, state size] becomes

    S_t = exp(dt_t A) S_(t-1) + (dt_t x_t) B_t^T;  y_t = S_t C_t + D x_t

with A = -exp(a_log) and dt = softplus(dt + dt_bias). The result is y times SiLU of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.platform.selective_scan import ScanInput
from tessera.reference.convolution import causal_convolution
from tessera.reference.parallel_scan import scanned
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

CONVOLUTION, SCAN = "mamba_convolution", "selective_scan"
CHUNK = 16
"""Tokens whose states are computed at once: each is as large as a whole state."""


class ReferenceMambaConvolution(StateBackend):
    name = "reference_mamba_convolution"
    kind = CONVOLUTION

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> MambaConvolutionLayer:
        return MambaConvolutionLayer(spec, weights)


class MambaConvolutionLayer(StateLayer):
    """x [T, channels], which are the elements of the spec's only head. Plane: conv [channels, kernel - 1], the last
    inputs. Weights: conv [channels, kernel], and bias [channels] if the option "bias" is 1."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights, self.biased = spec, weights, bool(dict(spec.options)["bias"])

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        (conv,) = caches[self.spec.layer]
        mixed = self._convolved(laid, conv, grid)
        if self.biased:
            mixed = mixed + self.weights["bias"]
        return F.silu(mixed)

    def _convolved(self, inputs: Tensor, conv: Tensor, grid: StateGrid) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"], conv, grid)


class ReferenceSelectiveScan(StateBackend):
    name = "reference_selective_scan"
    kind = SCAN

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> SelectiveScanLayer:
        return SelectiveScanLayer(spec, weights)


class SelectiveScanLayer(StateLayer):
    """x: a ScanInput. The channels are the elements of the spec's only head. Plane: state [channels, N]. Weights: a_log
    [channels, N]; d and dt_bias [channels]. Option: state_dim N."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def mix(self, laid: ScanInput, caches: Caches, grid: StateGrid) -> Tensor:
        inside = grid.valid[..., None]
        inputs, gate, dt, b, c = laid  # [R, W, ...] each
        (states,) = caches[self.spec.layer]
        step = torch.where(inside, self._step(dt), 0.0)
        before = torch.where(grid.fresh[:, None, None], 0.0, states[grid.slot].float())
        rule = recurrent if dt.shape[1] == 1 else chunked
        read, after = rule(c, b, step * inputs, step, self._rate(), before)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return self._gated(read, inputs, gate)

    def _step(self, dt: Tensor) -> Tensor:
        """[R, W, channels]"""
        return F.softplus(dt + self.weights["dt_bias"])

    def _rate(self) -> Tensor:
        """A [channels, N]"""
        return -self.weights["a_log"].exp()

    def _gated(self, read: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        """[R, W, channels] each"""
        return (read + self.weights["d"] * inputs) * F.silu(gate)


def recurrent(c: Tensor, b: Tensor, x: Tensor, step: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, token by token: c and b [R, W, N], x [R, W, channels] times its step, step [R, W, channels], rate
    [channels, N], state [R, channels, N] -> [R, W, channels] and the state behind them."""
    results = []
    for t in range(x.shape[1]):
        state = state * (step[:, t, :, None] * rate).exp() + x[:, t, :, None] * b[:, t, None, :]
        results.append((state @ c[:, t, :, None])[..., 0])
    return torch.stack(results, dim=1), state


def chunked(c: Tensor, b: Tensor, x: Tensor, step: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same for CHUNK tokens at once."""
    results = []
    for reads, writes, inputs, steps in zip(*(one.split(CHUNK, dim=1) for one in (c, b, x, step)), strict=True):
        left = (steps[..., None] * rate).exp()  # [R, size, channels, N]
        states = scanned(left, inputs[..., None] * writes[..., None, :], state)
        results.append((states @ reads[..., None])[..., 0])
        state = states[:, -1]
    return torch.cat(results, dim=1), state
