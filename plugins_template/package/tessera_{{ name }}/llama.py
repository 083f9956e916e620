"""A Llama in NumPy: one row at a time, in float32. A compiled program takes its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.platform import Array, ReadWeight


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


class Linear:
    """y = x W^T, with W [n, k] in float32 or, if there is a scale for each row, in int8. Then x is rounded to int8 too,
    with a scale for each token, as --quantization int8 means it."""

    def __init__(self, weight: Array, scale: Array | None = None) -> None:
        self.weight, self.scale = weight, scale
        self.nbytes = weight.nbytes + (0 if scale is None else scale.nbytes)

    @classmethod
    def of(cls, read: ReadWeight) -> Linear:
        if read.scheme is None:
            return cls(read.parts["weight"].float().numpy())
        return cls(*(read.parts[part].numpy() for part in ("weight", "scale")))

    def __call__(self, x: Array) -> Array:
        if self.scale is None:
            return x @ self.weight.T
        step = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-12) / 127
        sums = np.rint(x / step) @ self.weight.T.astype(np.float32)
        result: Array = sums * step * self.scale
        return result


class Llama:
    """said: config.json. linear_layers: inputs and outputs by name. linear: these layers, and weights: all other
    tensors, by their names in the checkpoint, once they are read."""

    linear: dict[str, Linear]
    weights: dict[str, Array]

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.hidden, self.heads, self.layers, self.eps = (
            said[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps")
        )
        self.kv_heads = said.get("num_key_value_heads") or self.heads
        self.dim = said.get("head_dim") or self.hidden // self.heads
        self.theta = (said.get("rope_parameters") or said).get("rope_theta", 10000.0)

        inner, (q, kv) = said["intermediate_size"], (heads * self.dim for heads in (self.heads, self.kv_heads))
        shapes = {"q": (self.hidden, q), "k": (self.hidden, kv), "v": (self.hidden, kv), "o": (q, self.hidden)}
        gated = {"gate": (self.hidden, inner), "up": (self.hidden, inner), "down": (inner, self.hidden)}
        self.linear_layers = {
            f"model.layers.{layer}.{block}.{part}_proj": shape
            for layer in range(self.layers)
            for block, parts in (("self_attn", shapes), ("mlp", gated))
            for part, shape in parts.items()
        }
        if not said.get("tie_word_embeddings"):
            self.linear_layers["lm_head"] = self.hidden, said["vocab_size"]

    def read(self, weights: Iterable[ReadWeight]) -> int:
        """Keeps the weights; returns their bytes."""
        self.linear, self.weights = {}, {}
        for one in weights:
            name, _, last = one.name.rpartition(".")
            if name in self.linear_layers and last == "weight":
                self.linear[name] = Linear.of(one)
            else:
                self.weights[one.name] = one.parts["weight"].float().numpy()
        self.linear.setdefault("lm_head", Linear(self.weights["model.embed_tokens.weight"]))
        return sum(layer.nbytes for layer in self.linear.values()) + sum(one.nbytes for one in self.weights.values())

    def logits(self, tokens: Array, start: int, num: int, cache: Cache) -> Array:
        """Tokens of a row, the first at position `start`, through the model; the logits of the last `num`."""
        at = np.arange(start, start + len(tokens))
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(f"{name}.self_attn", self._norm(x, f"{name}.input_layernorm"), layer, at, cache)
            x = x + self._mlp(f"{name}.mlp", self._norm(x, f"{name}.post_attention_layernorm"))
        return self.linear["lm_head"](self._norm(x[len(x) - num :], "model.norm"))

    def _norm(self, x: Array, name: str) -> Array:
        result: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[f"{name}.weight"]
        return result

    def _mlp(self, name: str, x: Array) -> Array:
        gate, up = self.linear[f"{name}.gate_proj"](x), self.linear[f"{name}.up_proj"](x)
        return self.linear[f"{name}.down_proj"](gate / (1 + np.exp(-gate)) * up)

    def _attention(self, name: str, x: Array, layer: int, at: Array, cache: Cache) -> Array:
        q, k, v = (self.linear[f"{name}.{part}_proj"](x).reshape(len(at), -1, self.dim) for part in "qkv")
        cache.write(layer, at, self._rotated(k, at), v)
        keys, values = np.repeat(cache.read(layer, at[-1] + 1), self.heads // self.kv_heads, axis=2)
        scores = np.einsum("qhd,khd->hqk", self._rotated(q, at), keys) * self.dim**-0.5
        scores[:, np.arange(at[-1] + 1)[None, :] > at[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
        return self.linear[f"{name}.o_proj"](mixed.reshape(len(at), -1))

    def _rotated(self, x: Array, at: Array) -> Array:
        angle = at[:, None] / self.theta ** (np.arange(0, self.dim, 2) / self.dim)[None, :]
        cos, sin = (turn(angle)[:, None, :].astype(np.float32) for turn in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
