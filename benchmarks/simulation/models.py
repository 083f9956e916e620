"""What a step of a model costs: bytes read and arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.gpu.models import LLAMA_8B, QWEN_06B, Sizes, kv_bytes, layer_tensors, token_bytes
from tessera.step import SchedulerOutput

SMOLLM2_135M: Sizes = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}

SIZES: Mapping[str, Sizes] = MappingProxyType(
    {"llama-3.1-8b": LLAMA_8B, "qwen3-0.6b": QWEN_06B, "smollm2-135m": SMOLLM2_135M}
)
"""By name, the sizes in a config.json."""


@dataclass(frozen=True)
class StepWork:
    """What a step computes, as far as its time depends on it."""

    rows: int
    # Of all rows.
    tokens: int
    # Tokens that are drawn.
    samples: int
    # Keys that attention reads, of all rows: each row's context once.
    keys: int
    # Pairs of a query and a key that it sees.
    pairs: int

    @classmethod
    def from_step(cls, step: SchedulerOutput) -> StepWork:
        counts = step.num_scheduled_tokens.astype(np.int64)
        ends = step.starts + counts
        pairs = counts * step.starts + counts * (counts + 1) // 2
        return cls(len(counts), int(counts.sum()), len(step.samples), int(ends.sum()), int(pairs.sum()))


@dataclass(frozen=True)
class ModelCost:
    """A decoder in bfloat16, by what its steps cost."""

    name: str
    # Of the weights that a step reads: all but an embedding that is not the head too.
    weight_bytes: float
    # Of all weights.
    all_bytes: float
    # Of a token's keys and values, in all layers.
    kv_bytes: int
    # Weights that each token is multiplied with.
    layer_weights: int
    # Weights that each drawn token is multiplied with.
    head_weights: int
    # Layers times heads times their size.
    attention_width: int
    # Token ids are below it.
    vocab_size: int

    @classmethod
    def from_sizes(cls, name: str, sizes: Sizes) -> ModelCost:
        layers, head = int(sizes["num_hidden_layers"]), int(sizes["vocab_size"]) * int(sizes["hidden_size"])
        matrices = sum(math.prod(shape) for shape in layer_tensors(sizes).values() if len(shape) == 2)
        read = token_bytes(sizes, 0)
        return cls(
            name=name,
            weight_bytes=read,
            all_bytes=read if sizes["tie_word_embeddings"] else read + 2 * head,
            kv_bytes=kv_bytes(sizes),
            layer_weights=layers * matrices,
            head_weights=head,
            attention_width=layers * int(sizes["num_attention_heads"]) * int(sizes["head_dim"]),
            vocab_size=int(sizes["vocab_size"]),
        )

    def product_flops(self, work: StepWork) -> float:
        return 2.0 * (self.layer_weights * work.tokens + self.head_weights * work.samples)

    def attention_flops(self, work: StepWork) -> float:
        return 4.0 * self.attention_width * work.pairs


def load_model(name: str) -> tuple[ModelCost, Sizes]:
    """One of SIZES, or the folder of a model whose layers are Llama's or Qwen3's. Raises ValueError."""
    if name in SIZES:
        return ModelCost.from_sizes(name, SIZES[name]), SIZES[name]
    try:
        sizes = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        sizes.setdefault("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
        sizes.setdefault("num_key_value_heads", sizes["num_attention_heads"])
        sizes.setdefault("tie_word_embeddings", False)
        if sizes["model_type"] not in ("llama", "qwen3"):
            raise ValueError(sizes["model_type"])
        return ModelCost.from_sizes(Path(name).name, sizes), sizes
    except (OSError, ValueError, KeyError) as error:
        known = ", ".join(SIZES)
        raise ValueError(f"--model {name} is neither one of {known} nor the folder of a Llama or Qwen3") from error
