"""A Llama in NumPy: one row at a time, in float32. A compiled program takes its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.platform import Array


def refusal(said: Mapping[str, Any]) -> str | None:
    """Why a model of this config.json cannot run; None where it can."""
    named = (said.get("architectures") or ["?"])[0]
    if named != "LlamaForCausalLM":
        return f"it runs LlamaForCausalLM, this is {named}"
    rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        return f"its rotary embeddings are scaled ({rope['rope_type']})"
    if said.get("attention_bias") or said.get("mlp_bias"):
        return "its products have biases"
    return None


@dataclass(frozen=True)
class Cache:
    """blocks [layers, keys and values, block, token, head, dim] of all rows, and the block table of one."""

    blocks: Array
    table: Array

    def write(self, layer: int, at: Array, *values: Array) -> None:
        size = self.blocks.shape[3]
        for plane, new in zip(self.blocks[layer], values, strict=True):
            plane[self.table[at // size], at % size] = new

    def read(self, layer: int, stop: int) -> Array:
        """Keys and values [2, tokens, head, dim] before `stop`."""
        size, past = self.blocks.shape[3], np.arange(stop)
        held: Array = self.blocks[layer][:, self.table[past // size], past % size]
        return held


class Llama:
    """said: config.json. weights: by their names in the checkpoint without "model.", once they are read."""

    weights: Mapping[str, Array]

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.hidden, self.heads, self.layers, self.eps = (
            said[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps")
        )
        self.kv_heads = said.get("num_key_value_heads") or self.heads
        self.dim = said.get("head_dim") or self.hidden // self.heads
        self.theta = (said.get("rope_parameters") or said).get("rope_theta", 10000.0)

    def logits(self, tokens: Array, start: int, cache: Cache) -> Array:
        """Tokens of a row, the first at position `start`, through the model; the logits of the last."""
        at = np.arange(start, start + len(tokens))
        x = self.weights["embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            name = f"layers.{layer}"
            x = x + self._attention(f"{name}.self_attn", self._norm(x, f"{name}.input_layernorm"), layer, at, cache)
            x = x + self._mlp(f"{name}.mlp", self._norm(x, f"{name}.post_attention_layernorm"))
        head = self.weights.get("lm_head.weight", self.weights["embed_tokens.weight"])
        result: Array = self._norm(x[-1], "norm") @ head.T
        return result

    def _linear(self, x: Array, name: str) -> Array:
        result: Array = x @ self.weights[f"{name}.weight"].T
        return result

    def _norm(self, x: Array, name: str) -> Array:
        result: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[f"{name}.weight"]
        return result

    def _mlp(self, name: str, x: Array) -> Array:
        gate, up = self._linear(x, f"{name}.gate_proj"), self._linear(x, f"{name}.up_proj")
        return self._linear(gate / (1 + np.exp(-gate)) * up, f"{name}.down_proj")

    def _attention(self, name: str, x: Array, layer: int, at: Array, cache: Cache) -> Array:
        q, k, v = (self._linear(x, f"{name}.{part}_proj").reshape(len(at), -1, self.dim) for part in "qkv")
        cache.write(layer, at, self._rotated(k, at), v)
        keys, values = np.repeat(cache.read(layer, at[-1] + 1), self.heads // self.kv_heads, axis=2)
        scores = np.einsum("qhd,khd->hqk", self._rotated(q, at), keys) * self.dim**-0.5
        scores[:, np.arange(at[-1] + 1)[None, :] > at[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
        return self._linear(mixed.reshape(len(at), -1), f"{name}.o_proj")

    def _rotated(self, x: Array, at: Array) -> Array:
        angle = at[:, None] / self.theta ** (np.arange(0, self.dim, 2) / self.dim)[None, :]
        cos, sin = (turn(angle)[:, None, :].astype(np.float32) for turn in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
