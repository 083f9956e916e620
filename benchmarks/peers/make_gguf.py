"""Converts a model's folder to one GGUF file: python -m benchmarks.peers.make_gguf FOLDER FILE DTYPE

Supports Llama and Qwen2 shapes. Prompts are token ids, so the tokenizer consists of bytes and fillers, whatever the
model's own is. Needs gguf, torch and safetensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from benchmarks.peers.byte_tokenizer import ENDS, names
from safetensors import safe_open

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2"}
FILE_TYPES = {
    "bfloat16": (gguf.LlamaFileType.MOSTLY_BF16, gguf.GGMLQuantizationType.BF16, torch.bfloat16),
    "float16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16, torch.float16),
    "float32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32, torch.float32),
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INSIDE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(folder: Path, target: Path, dtype: str) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = config["model_type"]
    if kind not in ARCHITECTURES:
        raise SystemExit(f"{kind} models are not converted; those are: {', '.join(ARCHITECTURES)}.")
    file_type, matrix_type, torch_type = FILE_TYPES[dtype]
    if kind == "llama" and config.get("attention_bias"):
        raise SystemExit("Llama models with biases in attention are not converted.")
    writer = gguf.GGUFWriter(target, ARCHITECTURES[kind])
    _describe(writer, config)
    writer.add_file_type(file_type)
    for name, tensor in _tensors(folder):
        if tensor.ndim == 1:  # norms and biases stay in float32
            writer.add_tensor(name, tensor.float().numpy())
            continue
        rows = _rotated(name, tensor, config) if kind == "llama" else tensor
        writer.add_tensor(name, rows.to(torch_type).contiguous().view(torch.uint8).numpy(), raw_dtype=matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, config["vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names(size))
    kinds = [gguf.TokenType.NORMAL] * (size - len(ENDS)) + [gguf.TokenType.CONTROL] * len(ENDS)
    writer.add_token_types(kinds)
    writer.add_token_merges(["< >"])  # an unused merge: the reader requires a non-empty list
    writer.add_bos_token_id(size - 2)
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = file.keys()
            for name in names:
                yield _renamed(name), file.get_tensor(name)


def _renamed(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in OUTSIDE:
        return f"{OUTSIDE[module]}.{kind}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{INSIDE[inner]}.{kind}"


def _rotated(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Permutes the rows of queries and keys: Llama in GGUF rotates neighbouring elements of a head, the checkpoint its
    halves."""
    counts = {"attn_q.weight": "num_attention_heads", "attn_k.weight": "num_key_value_heads"}
    heads = next((config[count] for ending, count in counts.items() if name.endswith(ending)), None)
    if heads is None:
        return tensor
    rows, columns = tensor.shape
    return tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
