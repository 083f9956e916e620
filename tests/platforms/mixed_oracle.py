"""What the mixed model computes, written down plainly: all tokens at once, nothing kept, no op and no layer of core."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.platforms.mixed_model import CAP, DIM, EPS, HEADS, KINDS, KV_HEADS, WINDOW


class MixedOracle:
    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")

    def logits(self, tokens: list[int]) -> Tensor:
        """[vocabulary] after the last token."""
        x = self.weights["embed.weight"][torch.tensor(tokens)]
        for number, kind in enumerate(KINDS):
            at = f"layers.{number}"
            x = x + self._mix(kind, f"{at}.mix", self._norm(x, f"{at}.mix_norm"))
            h = self._norm(x, f"{at}.mlp_norm")
            gate, up = (self._product(h, f"{at}.mlp.{name}_proj") for name in ("gate", "up"))
            wide = gate * torch.sigmoid(gate) * up
            x = x + torch.tanh(self._product(wide, f"{at}.mlp.down_proj") / CAP) * CAP
        return self._product(self._norm(x[-1], "norm"), "head")

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.weights[f"{name}.weight"]

    def _product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def _mix(self, kind: str, at: str, x: Tensor) -> Tensor:
        q, k, v = (self._product(x, f"{at}.{name}_proj").unflatten(-1, (-1, DIM)) for name in "qkv")
        mixed = self._recurrent(q, k, v) if kind == "linear" else self._attention(q, k, v, kind == "window")
        return self._product(mixed.flatten(1), f"{at}.o_proj")

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, window: bool) -> Tensor:
        q, k = (self._rotated(heads) for heads in (q, k))
        token = torch.arange(len(q))
        seen = token[None, :] <= token[:, None]
        if window:
            seen &= token[None, :] > token[:, None] - WINDOW
        result = torch.empty_like(q)
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = (q[:, head] @ k[:, shared].T * DIM**-0.5).masked_fill(~seen, -torch.inf)
            result[:, head] = torch.softmax(scores, -1) @ v[:, shared]
        return result

    def _recurrent(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        decay = (1 - 2.0 ** (-5 - torch.arange(HEADS)))[:, None, None]
        state, result = torch.zeros(HEADS, DIM, DIM), torch.empty_like(q)
        for token in range(len(q)):
            state = decay * state + k[token, :, :, None] * v[token, :, None, :]
            result[token] = (q[token, :, None, :] @ state)[:, 0] * DIM**-0.5
        return result

    def _rotated(self, heads: Tensor) -> Tensor:
        angle = torch.arange(len(heads))[:, None] / 10000.0 ** (torch.arange(0, DIM, 2) / DIM)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        a, b = heads.chunk(2, dim=-1)
        turned = torch.complex(a, b) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)
