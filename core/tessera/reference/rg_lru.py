"""The real-gated linear recurrent unit over a StateSpec: the reference definition of a mixer whose state is one number
per channel (Griffin, arXiv:2402.19427).

A token has for each channel a gate and an input. A short causal convolution of each channel makes x of the inputs. From
the channels of a head of x come, for each of these channels, the sigmoids i and r, and

    a_t = exp(-8 r_t softplus(a_param));  h_t = a_t h_(t-1) + sqrt(1 - a_t^2) i_t x_t

where the first token of a text, which has nothing before it, adds i_t x_t whole. The result is h times GELU of the
gate, in its tanh form.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.convolution import causal_convolution
from tessera.reference.parallel_scan import scanned
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "rg_lru"
SHARPNESS = 8.0
"""c of the paper."""


class ReferenceRGLRU(StateBackend):
    name = "reference_rg_lru"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> RGLRULayer:
        return RGLRULayer(spec, weights)


class RGLRULayer(StateLayer):
    """x [T, 2 channels]: gates, then inputs. The channels are those of the spec's heads. Planes: conv [channels,
    kernel - 1], the last inputs, and state [channels]. Weights: conv [channels, kernel] and conv_bias [channels];
    a_param [channels]; input_gate and recurrence_gate [heads, head_dim, head_dim], which a head's channels are
    multiplied with from the left, and input_gate_bias and recurrence_gate_bias [heads, head_dim]. Option: kernel."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        inside = grid.valid[..., None]
        gate, inputs = laid.chunk(2, dim=-1)
        conv, states = caches[self.spec.layer]
        inputs = self._convolved(inputs, conv, grid)
        log_decay = torch.where(inside, self._log_decay(inputs), 0.0)
        written = self._gate("input_gate", inputs) * inputs
        added = torch.where(inside, self._share(log_decay, grid.fresh) * written, 0.0)
        before = torch.where(grid.fresh[:, None], 0.0, states[grid.slot].float())
        rule = recurrent if laid.shape[1] == 1 else scanned
        read = rule(log_decay.exp(), added, before)
        states.index_put_((grid.slot,), read[:, -1].to(states.dtype))
        return self._gated(read, gate)

    def _convolved(self, inputs: Tensor, conv: Tensor, grid: StateGrid) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"], conv, grid) + self.weights["conv_bias"]

    def _gate(self, name: str, x: Tensor) -> Tensor:
        """[R, W, channels]"""
        heads = x.unflatten(-1, (self.spec.num_heads, self.spec.head_dim))
        product = torch.einsum("rwhd,hde->rwhe", heads, self.weights[name].float())
        return (product + self.weights[f"{name}_bias"]).sigmoid().flatten(-2)

    def _log_decay(self, x: Tensor) -> Tensor:
        """[R, W, channels]"""
        return -SHARPNESS * self._gate("recurrence_gate", x) * F.softplus(self.weights["a_param"])

    def _share(self, log_decay: Tensor, fresh: Tensor) -> Tensor:
        """What a token adds of what it could: [R, W, channels]."""
        share = (-torch.expm1(2 * log_decay)).sqrt()
        first = fresh[:, None] & (torch.arange(share.shape[1], device=share.device) == 0)
        return torch.where(first[..., None], 1.0, share)

    def _gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """[R, W, channels] each"""
        return read * F.gelu(gate, approximate="tanh")


def recurrent(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """The definition, token by token: decay and added [R, W, channels], state [R, channels] -> the states behind all
    tokens [R, W, channels]. scanned() computes the same for all at once."""
    states = []
    for t in range(added.shape[1]):
        state = decay[:, t] * state + added[:, t]
        states.append(state)
    return torch.stack(states, dim=1)
