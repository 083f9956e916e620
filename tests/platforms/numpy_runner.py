"""A platform at runner depth in NumPy alone: a Llama whose tensors torch never sees, against the contracts only.

It is the proof that a device with its own compiler needs no torch device: it imports tessera.platform and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import platform as tp

CACHE_BYTES = 1 << 20
Array = tp.Array


class NumpyDevice(tp.Device):
    target = "cpu"

    def memory(self) -> tp.MemoryFigures:
        return tp.MemoryFigures(1 << 30, 1 << 30, host=True)

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Any) -> tp.Ready:
        return tp.Ready(tensor)


class NumpyPlatform(tp.Platform):
    name = "numpy"
    capabilities = tp.Capabilities(dtypes=("float32",), async_dispatch=False)

    def open(self, index: int) -> tp.Device:
        return NumpyDevice()

    def runner(self, services: tp.RunnerServices) -> tp.ModelRunner:
        return NumpyRunner(services)


class NumpyRunner(tp.ModelRunner):
    def __init__(self, services: tp.RunnerServices) -> None:
        self.services, said = services, services.checkpoint()
        self.hidden, self.heads, self.kv_heads = (
            said[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        self.layers, self.eps, self.dim = said["num_hidden_layers"], said["rms_norm_eps"], self.hidden // self.heads
        self.theta = said["rope_parameters"]["rope_theta"]

    def load(self, budget: tp.MemoryBudget) -> tp.LoadedModel:
        self.weights = {name.removeprefix("model."): tensor.float().numpy() for name, tensor in self.services.weights()}
        layers, spec = range(self.layers), tp.Paged(self.kv_heads, self.dim, "float32")
        facts = tp.ModelFacts(
            architecture="LlamaForCausalLM",
            vocab_size=len(self.weights["lm_head.weight"]),
            hidden_size=self.hidden,
            num_layers=self.layers,
            max_positions=self.services.config.model.max_model_len,
            dtype="float32",
            caches=tuple(tp.LayerCache(layer, spec) for layer in layers),
        )
        needs = tuple(tp.CacheNeeds(layer, spec, (16,), True, "int32", "exact", 1, self._layout) for layer in layers)
        weight_bytes = sum(weight.nbytes for weight in self.weights.values())
        return tp.LoadedModel(facts, needs, weight_bytes, budget.kv or CACHE_BYTES)

    def _layout(self, block_size: int) -> tp.KVLayout:
        axes = (("token", block_size), ("head", self.kv_heads), ("dim", self.dim))
        return tp.KVLayout((tp.Plane("k", "float32", axes), tp.Plane("v", "float32", axes)))

    def allocate(self, plan: tp.CachePlan) -> None:
        (self.group,) = plan.groups
        shape = (self.layers, 2, self.group.num_blocks, self.group.block_size, self.kv_heads, self.dim)
        self.cache = np.full(shape, np.nan, np.float32)
        self.batch = self.services.input_batch(plan)

    def warm_up(self, store: tp.Artifacts, report: Callable[[tp.Progress], None]) -> None:
        return None

    def execute(self, step: tp.SchedulerOutput) -> Any:
        self.batch.apply(step)
        for copy in step.copies:
            self.cache[:, :, copy.targets] = self.cache[:, :, copy.sources]
        grants = zip(step.rows.tolist(), step.starts.tolist(), step.num_tokens.tolist(), strict=True)
        return step, {row: (start + count, self._forward(row, start, start + count)) for row, start, count in grants}

    def sample(self, pending: Any, masks: tp.Masks | None) -> tp.Ready:
        step, results = pending
        rows, tokens = step.samples, np.zeros(0, np.int32)
        if len(rows):
            ends, logits = (np.stack(column) for column in zip(*(results[row] for row in rows.tolist()), strict=True))
            tokens = self.services.sample(logits, self.batch, rows, ends)
            self.batch.tokens[rows, ends] = tokens
        return tp.Ready(tp.StepOutput(step.step, rows, np.ones(len(rows), np.int32), tokens, epoch=step.epoch))

    def control(self, verb: tp.Control) -> tp.ControlResult:
        return tp.ControlResult()

    def _forward(self, row: int, start: int, stop: int) -> Array:
        """Tokens start..stop of a row through the model; the logits of the last."""
        w, at = self.weights, np.arange(start, stop)
        x = w["embed_tokens.weight"][self.batch.tokens[row, start:stop]]
        for i in range(self.layers):
            x = x + self._attention(f"layers.{i}.self_attn", self._norm(x, f"layers.{i}.input_layernorm"), i, row, at)
            h = self._norm(x, f"layers.{i}.post_attention_layernorm")
            gate, up = (h @ w[f"layers.{i}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"layers.{i}.mlp.down_proj.weight"].T
        logits: Array = self._norm(x[-1], "norm") @ w["lm_head.weight"].T
        return logits

    def _norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[f"{name}.weight"]

    def _attention(self, name: str, x: Array, layer: int, row: int, at: Array) -> Array:
        q, k, v = ((x @ self.weights[f"{name}.{p}_proj.weight"].T).reshape(len(at), -1, self.dim) for p in "qkv")
        q, k = self._rotated(q, at), self._rotated(k, at)
        size, table, past = self.group.block_size, self.batch.tables[0][row], np.arange(at[-1] + 1)
        for plane, values in zip(self.cache[layer], (k, v), strict=True):
            plane[table[at // size], at % size] = values
        held = self.cache[layer][:, table[past // size], past % size]
        k, v = np.repeat(held, self.heads // self.kv_heads, axis=2)
        scores = np.einsum("qhd,khd->hqk", q, k) * self.dim**-0.5
        scores[:, past[None, :] > at[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return mixed.reshape(len(at), -1) @ self.weights[f"{name}.o_proj.weight"].T

    def _rotated(self, x: Array, at: Array) -> Array:
        angle = at[:, None] / self.theta ** (np.arange(0, self.dim, 2) / self.dim)[None, :]
        cos, sin = (f(angle)[:, None, :].astype(np.float32) for f in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
