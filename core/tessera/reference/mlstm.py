"""mLSTM over a StateSpec: the reference definition of a matrix memory with exponential gates (xLSTM, arXiv:2405.04517,
in the form of xLSTM 7B, arXiv:2503.13427).

Of a token, a head has a query, a key, a value, gates of its result, and a gate each for what the memory takes and
keeps, i and f = cap tanh((projected + bias) / cap). With the value, to which a 1 is appended, the memory becomes

    m_t = max(log sigmoid(f_t) + m_(t-1), i_t)
    S_t = exp(log sigmoid(f_t) + m_(t-1) - m_t) S_(t-1) + exp(i_t - m_t) k_t v_t^T

from S = 0 and m = 0. Of scale q_t S_t, the last element normalizes the others: they are divided by the larger of its
absolute value and exp(-m_t), plus state_eps. The result is their layer norm times the sigmoid of the gates.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.chunks import CHUNK, seen
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "mlstm"
Memory = tuple[Tensor, Tensor]
"""S [R, H, key, value + 1] and m [R, H]."""


class ReferenceMLSTM(StateBackend):
    name = "reference_mlstm"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> MLSTMLayer:
        return MLSTMLayer(spec, weights)


class MLSTMLayer(StateLayer):
    """x [T, H (2 key + 2 head_dim + 2)]: queries, keys, values, gates of the result, i and f, of all heads each.
    Planes: state [H, key, head_dim + 1] and largest [H], which is m. Weights: gate_bias [2 H], of i and f, and norm [H
    head_dim]. Options: key_dim, cap, eps of the norm, and state_eps."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights, self.options = spec, weights, dict(spec.options)
        key, value = int(self.options["key_dim"]), spec.head_dim
        self.sizes = [spec.num_heads * size for size in (key, key, value, value, 1, 1)]

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        inside = grid.valid[..., None]
        *parts, i, f = laid.split(self.sizes, dim=-1)
        q, k, v, gates = (part.unflatten(-1, (self.spec.num_heads, -1)) for part in parts)  # [R, W, H, ...]
        states, largest = caches[self.spec.layer]
        before = (
            torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float()),
            torch.where(grid.fresh[:, None], 0.0, largest[grid.slot].float()),
        )
        log_input, log_forget = self._gates(i, f)
        log_input, log_forget = torch.where(inside, log_input, -torch.inf), torch.where(inside, log_forget, 0.0)
        rule = recurrent if v.shape[1] == 1 else chunked
        read, reached, after = rule(q * self.spec.scale, k, F.pad(v, (0, 1), value=1.0), log_input, log_forget, before)
        states.index_put_((grid.slot,), after[0].to(states.dtype))
        largest.index_put_((grid.slot,), after[1].to(largest.dtype))
        return self._gated(self._normalized(read, reached), gates)

    def _gates(self, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithms of both gates of the memory: [R, W, H] each."""
        cap = self.options["cap"]
        i_bias, f_bias = self.weights["gate_bias"].chunk(2)
        i, f = (cap * torch.tanh((gate + bias) / cap) for gate, bias in ((i, i_bias), (f, f_bias)))
        return i, F.logsigmoid(f)

    def _normalized(self, read: Tensor, largest: Tensor) -> Tensor:
        """read [R, W, H, head_dim + 1], largest [R, W, H] -> [R, W, H, head_dim]"""
        least = (-largest).exp()[..., None]
        return read[..., :-1] / (torch.maximum(read[..., -1:].abs(), least) + self.options["state_eps"])

    def _gated(self, read: Tensor, gates: Tensor) -> Tensor:
        """[R, W, H, head_dim] each -> [R, W, H head_dim]"""
        normed = F.layer_norm(read, read.shape[-1:], eps=self.options["eps"]).flatten(-2)
        return normed * self.weights["norm"] * gates.flatten(-2).sigmoid()


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, log_forget: Tensor, memory: Memory
) -> tuple[Tensor, Tensor, Memory]:
    """The definition, token by token: q and k [R, W, H, key], v [R, W, H, value + 1], the logarithms of the gates
    [R, W, H] -> what is read [R, W, H, value + 1], m behind each token [R, W, H], and the memory behind them."""
    (state, largest), read, reached = memory, [], []
    for t in range(v.shape[1]):
        faded, largest = log_forget[:, t] + largest, torch.maximum(log_forget[:, t] + largest, log_input[:, t])
        keeps, takes = ((one - largest).exp()[..., None, None] for one in (faded, log_input[:, t]))
        state = keeps * state + takes * k[:, t, :, :, None] * v[:, t, :, None, :]
        read.append((q[:, t, :, None, :] @ state)[..., 0, :])
        reached.append(largest)
    return torch.stack(read, dim=1), torch.stack(reached, dim=1), (state, largest)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, log_forget: Tensor, memory: Memory
) -> tuple[Tensor, Tensor, Memory]:
    """The same for CHUNK tokens at once."""
    (state, largest), read, reached = memory, [], []
    parts = (one.transpose(1, 2).split(CHUNK, dim=2) for one in (q, k, v, log_input, log_forget))
    for queries, keys, values, takes, keeps in zip(*parts, strict=True):  # [R, H, size, ...]
        since = keeps.cumsum(-1)
        written = since[..., :, None] - since[..., None, :] + takes[..., None, :]
        written = torch.where(seen(since.shape[-1], since), written, -torch.inf)  # [R, H, size, size]
        faded = since + largest[..., None]
        most = torch.maximum(written.amax(-1), faded)
        shares, rest = (written - most[..., None]).exp(), (faded - most).exp()[..., None]
        read.append((queries @ keys.mT * shares) @ values + rest * (queries @ state))
        reached.append(most)
        state = rest[..., -1:, :] * state + (shares[..., -1, :, None] * keys).mT @ values
        largest = most[..., -1]
    results, exponents = (torch.cat(one, dim=2).transpose(1, 2) for one in (read, reached))
    return results, exponents, (state, largest)
