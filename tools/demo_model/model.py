"""The network that is trained: a Llama decoder in plain torch, saved in the layout of LlamaForCausalLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Up to this length, unfused attention trains faster on a CPU than fused attention.
LONG = 320


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are those of tessera-demo."""

    vocab: int = 1024
    hidden: int = 192
    intermediate: int = 512
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def config(self, bos: int | None, eos: int, pad: int) -> dict[str, object]:
        """config.json for transformers and Tessera."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "initializer_range": 0.02,
            "use_cache": True,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
        }


class Block(nn.Module):
    """Attention and gated MLP, each after an RMS norm. q, k, v and gate, up are one matrix each, for speed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_norm = nn.Parameter(torch.ones(shape.hidden))
        self.post_norm = nn.Parameter(torch.ones(shape.hidden))
        self.qkv = nn.Linear(shape.hidden, q_size + 2 * kv_size, bias=False)
        self.out = nn.Linear(q_size, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [batch, length, hidden]; cos, sin: [length, head_dim]."""
        shape = self.shape
        batch, length, _ = x.shape
        heads = shape.heads + 2 * shape.kv_heads
        qkv = self.qkv(F.rms_norm(x, (shape.hidden,), self.input_norm, shape.norm_eps))
        qkv = qkv.view(batch, length, heads, shape.head_dim).transpose(1, 2)
        qk, v = qkv.split([shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        qk = rotate(qk, cos, sin)
        q, k = qk.split([shape.heads, shape.kv_heads], dim=1)
        attended = attend(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(F.rms_norm(x, (shape.hidden,), self.post_norm, shape.norm_eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Maps token ids to hidden states and, through the tied embedding, to logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks: list[Block] = [Block(shape) for _ in range(shape.layers)]
        self.layers = nn.ModuleList(self.blocks)
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Initializes the weights; the matrices that write to the residual start at zero.

        The embedding is large enough to matter next to what the blocks write. The last norm compensates for that, so
        that the first logits are small.
        """
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.constant_(self.norm, 0.1)
        for block in self.blocks:
            for linear in (block.qkv, block.gate_up):
                nn.init.normal_(linear.weight, std=self.shape.hidden**-0.5)
            nn.init.zeros_(block.out.weight)
            nn.init.zeros_(block.down.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps ids [batch, length] to hidden states [batch, length, hidden]."""
        x = self.embedding(ids)
        length = ids.shape[1]
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.rms_norm(x, (self.shape.hidden,), self.norm, self.shape.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps hidden [..., hidden] to logits [..., vocab]."""
        return F.linear(hidden, self.embedding.weight)

    def llama_state(self) -> dict[str, Tensor]:
        """Parameters in bfloat16 under LlamaForCausalLM's names, without the tied head."""
        shape = self.shape
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        state = {"model.embed_tokens.weight": self.embedding.weight, "model.norm.weight": self.norm}
        for index, block in enumerate(self.blocks):
            q, k, v = block.qkv.weight.split([q_size, kv_size, kv_size])
            gate, up = block.gate_up.weight.chunk(2)
            parts = {
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": block.out.weight,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": block.down.weight,
                "input_layernorm": block.input_norm,
                "post_attention_layernorm": block.post_norm,
            }
            state.update({f"model.layers.{index}.{name}.weight": part for name, part in parts.items()})
        return {name: part.detach().to(torch.bfloat16).contiguous().clone() for name, part in state.items()}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q [batch, heads, length, head_dim] over k, v [batch, kv_heads, length, head_dim]."""
    batch, heads, length, size = q.shape
    if length > LONG:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    groups = batch * k.shape[1]
    scores = q.reshape(groups, -1, size) @ k.reshape(groups, length, size).mT * size**-0.5
    future = torch.full((length, length), float("-inf"), dtype=scores.dtype).triu(1)
    weights = torch.softmax(scores.view(groups, -1, length, length) + future, dim=-1).to(v.dtype)
    attended = weights.view(groups, -1, length) @ v.reshape(groups, length, size)
    return attended.view(batch, heads, length, size)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and sin, each [context, head_dim], with repeated halves for Llama's rotation."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.arange(shape.context).float()[:, None] * inverse[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, length, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
