"""The time mixing of RWKV over a StateSpec: the reference definition of an average of all values so far, which fades by
channel (RWKV, arXiv:2305.13048).

    y_t = (e^(u + k_t) v_t + a_(t-1)) / (e^(u + k_t) + b_(t-1))
    a_t = e^w a_(t-1) + e^(k_t) v_t;  b_t = e^w b_(t-1) + e^(k_t)

with w = -exp(decay) and a bonus u for the token itself. a and b are kept divided by e^m, where m is the largest
exponent in them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.platform.wkv import WKVInput
from tessera.reference.chunks import CHUNK
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "wkv"
NOTHING = -1e38
"""The largest exponent in an empty sum: finite, so that differences of two are."""
Sums = tuple[Tensor, Tensor, Tensor]
"""a and b, divided by e^m, and m."""


class ReferenceWKV(StateBackend):
    name = "reference_wkv"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> WKVLayer:
        return WKVLayer(spec, weights)


class WKVLayer(StateLayer):
    """x: a WKVInput -> [T, channels], which are the elements of the spec's only head. Plane: sums [3, channels]: a and
    b, divided by e^m, and m. Weights: decay and bonus [channels]."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def mix(self, laid: WKVInput, caches: Caches, grid: StateGrid) -> Tensor:
        (sums,) = caches[self.spec.layer]
        before, results = self._before(sums, grid), []
        parts = (one.split(CHUNK, dim=1) for one in (*laid, grid.valid[..., None]))
        for keys, values, inside in zip(*parts, strict=True):
            result, before = self._over(keys, values, inside, before)
            results.append(result)
        sums.index_put_((grid.slot,), torch.stack(before, dim=1).to(sums.dtype))
        return torch.cat(results, dim=1)

    def _over(self, keys: Tensor, values: Tensor, inside: Tensor, before: Sums) -> tuple[Tensor, Sums]:
        """The averages of some tokens [R, W, channels], of which those inside [R, W, 1] are there, and the sums behind
        them."""
        added = values * inside, inside.float().expand_as(keys), torch.where(inside, keys, NOTHING)
        rule = recurrent if keys.shape[1] == 1 else scanned
        after = rule(added, torch.where(inside, -self.weights["decay"].exp(), 0.0), before)
        earlier = (torch.cat([one[:, None], every[:, :-1]], dim=1) for one, every in zip(before, after, strict=True))
        a, b, m = (one[:, -1] for one in after)
        return self._average(keys, values, *earlier), (a, b, m)

    def _before(self, sums: Tensor, grid: StateGrid) -> Sums:
        """Those of the rows: [R, channels] each."""
        a, b, m = sums[grid.slot].float().unbind(1)
        fresh = grid.fresh[:, None]
        return torch.where(fresh, 0.0, a), torch.where(fresh, 0.0, b), torch.where(fresh, NOTHING, m)

    def _average(self, keys: Tensor, values: Tensor, a: Tensor, b: Tensor, m: Tensor) -> Tensor:
        """[R, W, channels] each: of a token and what was before it."""
        own = keys + self.weights["bonus"]
        most = torch.maximum(own, m)
        weight, others = (own - most).exp(), (m - most).exp()
        return (weight * values + others * a) / (weight + others * b)


def joined(first: Sums, faded: Tensor, second: Sums) -> Sums:
    """The sums of two parts of a text. faded: the logarithm of what the second leaves of the first."""
    (a, b, m), (a_more, b_more, m_more) = first, second
    most = torch.maximum(m + faded, m_more)
    left, added = (m + faded - most).exp(), (m_more - most).exp()
    return left * a + added * a_more, left * b + added * b_more, most


def recurrent(added: Sums, faded: Tensor, before: Sums) -> Sums:
    """The definition, token by token: added, by each token alone, and faded, by each token, [R, W, channels]; before
    [R, channels] -> the sums behind all tokens [R, W, channels]."""
    after: list[Sums] = []
    for t in range(faded.shape[1]):
        a, b, m = (one[:, t] for one in added)
        before = joined(before, faded[:, t], (a, b, m))
        after.append(before)
    a, b, m = (torch.stack(one, dim=1) for one in zip(*after, strict=True))
    return a, b, m


def scanned(added: Sums, faded: Tensor, before: Sums) -> Sums:
    """The same for all tokens at once: what tokens added is joined with what those before them did, of twice as many
    each time (parallel scan)."""
    reach = 1
    while reach < faded.shape[1]:
        earlier, own = _part(added, slice(None, -reach)), _part(added, slice(reach, None))
        both = zip(_part(added, slice(None, reach)), joined(earlier, faded[:, reach:], own), strict=True)
        a, b, m = (torch.cat(parts, dim=1) for parts in both)
        added = a, b, m
        faded = torch.cat([faded[:, :reach], faded[:, reach:] + faded[:, :-reach]], dim=1)
        reach *= 2
    a, b, m = (one[:, None] for one in before)
    return joined((a, b, m), faded, added)


def _part(sums: Sums, tokens: slice) -> Sums:
    a, b, m = sums
    return a[:, tokens], b[:, tokens], m[:, tokens]
