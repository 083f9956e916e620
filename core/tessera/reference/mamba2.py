"""Mamba 2 over a StateSpec: the reference definition of a state-space model with one decay per head.

Inputs x, B and C pass a short causal convolution and SiLU. Then, for each head, with its group's B and C, the state S
[head size, state size] becomes

    S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t^T;  y_t = S_t C_t + D x_t

with A = -exp(a_log) and dt = softplus(dt + dt_bias) within limits (structured state space duality, arXiv:2405.21060).
The result is the RMS norm, over each group's heads, of y times SiLU of a gate. Some models gate behind the norm, or
have no norm (Falcon-H1, arXiv:2507.22448).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.chunks import CHUNK, fading, in_chunks
from tessera.reference.convolution import causal_convolution
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "mamba2"


class ReferenceMamba2(StateBackend):
    name = "reference_mamba2"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mamba2Layer:
        return Mamba2Layer(spec, weights)


class Mamba2Layer(StateLayer):
    """x [T, 2 H P + 2 G N + H]: gates, inputs, B, C and dt, each ordered by head or group. Planes: conv [channels,
    kernel - 1], the last inputs of the convolution, and state [H, P, N]. Weights beside conv: conv_bias [channels];
    a_log, d and dt_bias [H]; norm [H P]; multipliers of x, of its size. Options: state_dim N; eps of the norm; dt_min
    and dt_max, limits of dt, if it has some; normed and gate_first, 0 if they are not so; multiplied, if x is."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights, self.options = spec, weights, dict(spec.options)
        self.inner, self.state_dim = spec.num_heads * spec.head_dim, int(self.options["state_dim"])
        self.wide = spec.num_kv_heads * self.state_dim  # elements of B, and of C

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        spec = self.spec
        laid = self._multiplied(laid)
        gate, mixed, dt = laid.split((self.inner, self.inner + 2 * self.wide, spec.num_heads), dim=-1)
        conv, states = caches[spec.layer]
        values, b, c = self._heads(F.silu(self._convolved(mixed, conv, grid)))
        step = torch.where(grid.valid[..., None], self._step(dt), 0.0)
        decay = -self.weights["a_log"].exp() * step
        before = torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float())
        rule = recurrent if laid.shape[1] == 1 else chunked
        read, after = rule(c, b, step[..., None] * values, decay, before)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return self._normed(read + self.weights["d"][:, None] * values, gate)

    def _multiplied(self, x: Tensor) -> Tensor:
        return x * self.weights["multipliers"] if self.options.get("multiplied") else x

    def _convolved(self, inputs: Tensor, conv: Tensor, grid: StateGrid) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"], conv, grid) + self.weights["conv_bias"]

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, W, H, P], B and C [R, W, H, N]. Consecutive heads share a group."""
        x, b, c = mixed.split((self.inner, self.wide, self.wide), dim=-1)
        shared = self.spec.num_heads // self.spec.num_kv_heads
        b, c = (one.unflatten(-1, (-1, self.state_dim)).repeat_interleave(shared, dim=2) for one in (b, c))
        return x.unflatten(-1, (-1, self.spec.head_dim)), b, c

    def _step(self, dt: Tensor) -> Tensor:
        """[R, W, H]"""
        step = F.softplus(dt + self.weights["dt_bias"])
        return step.clamp(self.options.get("dt_min", 0.0), self.options.get("dt_max", torch.inf))

    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """[R, W, H, P] and [R, W, H P] -> [R, W, H P]"""
        mixed, gate = mixed.flatten(2), F.silu(gate)
        if not self.options.get("normed", 1.0):
            return mixed * gate
        return self._norm(mixed * gate) if self.options.get("gate_first", 1.0) else self._norm(mixed) * gate

    def _norm(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (self.spec.num_kv_heads, -1))
        scaled = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.options["eps"])
        return scaled.flatten(2) * self.weights["norm"].float()


def recurrent(c: Tensor, b: Tensor, x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, token by token: c and b [R, W, H, N], x [R, W, H, P] times its step, decay (the logarithm) [R, W,
    H], state [R, H, P, N] -> [R, W, H, P] and the state behind them."""
    results = []
    for t in range(x.shape[1]):
        state = state * decay[:, t].exp()[..., None, None] + torch.einsum("rhp,rhn->rhpn", x[:, t], b[:, t])
        results.append(torch.einsum("rhpn,rhn->rhp", state, c[:, t]))
    return torch.stack(results, dim=1), state


def chunked(c: Tensor, b: Tensor, x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same for CHUNK tokens at once: those of a chunk as attention whose scores fade, those before it through the
    state."""
    width = x.shape[1]
    size = min(CHUNK, width)
    c, b, x, decay = (in_chunks(one, size) for one in (c, b, x, decay[..., None]))
    since = decay[..., 0].cumsum(-1)  # [R, H, chunks, size]
    within = ((c @ b.mT) * fading(since)) @ x
    reads, writes = c * since[..., None].exp(), b * (since[..., -1:] - since)[..., None].exp()
    whole = since[..., -1].exp()[..., None, None]
    added = x.mT @ writes  # [R, H, chunks, P, N]
    results = []
    for at in range(x.shape[2]):
        results.append(within[:, :, at] + reads[:, :, at] @ state.mT)
        state = whole[:, :, at] * state + added[:, :, at]
    return torch.cat(results, dim=2).transpose(1, 2)[:, :width], state
