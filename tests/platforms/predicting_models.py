"""Tiny models with a layer that predicts further tokens, as checkpoints have it, and what it predicts: computed by
transformers' own layers, which has no code for the whole of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.platforms.tiny_models import LEFT_OUT, save_family


@dataclass(frozen=True)
class Parts:
    """What a family calls the parts of the layer beside its block, its block itself, and what config.json says."""

    embedding_norm: str = "model.layers.{}.enorm.weight"
    hidden_norm: str = "model.layers.{}.hnorm.weight"
    projection: str = "model.layers.{}.eh_proj.weight"
    norm: str = "model.layers.{}.shared_head.norm.weight"
    block: str = "model.layers.{}."
    said: dict[str, int] = field(default_factory=lambda: {"num_nextn_predict_layers": 1})
    # fields of its configuration that transformers needs otherwise than those of tiny_models.py
    differs: dict[str, Any] = field(default_factory=dict)
    # added to the weights of norms
    offset: float = 0.0
    # whether one more token is predicted from the state behind the last norm
    normed: bool = False


QWEN = (
    "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight", "mtp.norm.weight",
    "mtp.layers.0.",
)  # fmt: skip
_DELTA_NETS = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
}
_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 48,
}
PARTS: dict[str, Parts] = {
    "deepseek_v3": Parts(differs={"head_dim": LEFT_OUT}),
    "glm4_moe": Parts(differs={"partial_rotary_factor": 0.5}),
    "qwen3_next": Parts(
        *QWEN, differs={**_DELTA_NETS, **_EXPERTS, "norm_topk_prob": True}, offset=1.0, normed=True, said={}
    ),
    "qwen3_5_text": Parts(*QWEN, differs=_DELTA_NETS, offset=1.0, normed=True, said={"mtp_num_hidden_layers": 1}),
}


class Predictions:
    """A checkpoint in a new folder, and what it says. layers: of the model, before the one that predicts."""

    def __init__(self, family: str, folder: Path, *, layers: int = 2, repeats: bool, **differs: Any) -> None:
        """repeats: a token depends on the one before it above all, and the layer knows how; else all is random."""
        self.parts, self.number, self.folder = PARTS[family], layers, folder / family
        save_family(family, folder, num_hidden_layers=layers + 1, **self.parts.differs, **differs)
        self.whole = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        hidden, chance = self.whole.config.hidden_size, torch.Generator().manual_seed(7)

        def draw(*shape: int, std: float = 0.12) -> Tensor:
            return torch.empty(shape).normal_(std=std, generator=chance)

        names = (self.parts.embedding_norm, self.parts.hidden_norm, self.parts.norm)
        self.norms = [1 + draw(hidden, std=0.0 if repeats else 0.2) for _ in names]
        self.projection = draw(hidden, 2 * hidden, std=0.01 if repeats else 0.12)
        if repeats:
            self.projection[:, :hidden] += torch.eye(hidden)
            self._quieten()
        stored = {self._stored(name): weight for name, weight in load_file(self.folder / "model.safetensors").items()}
        stored |= {name.format(layers): norm - self.parts.offset for name, norm in zip(names, self.norms, strict=True)}
        stored[self.parts.projection.format(layers)] = self.projection
        save_file(stored, self.folder / "model.safetensors", metadata={"format": "pt"})
        self._tell(**self.parts.said)
        self.model = self.whole.model
        self.block = self.model.layers[layers]
        self.model.layers = self.model.layers[:layers]

    def _stored(self, name: str) -> str:
        before = f"model.layers.{self.number}."
        return name.replace(before, self.parts.block.format(self.number)) if name.startswith(before) else name

    def _quieten(self) -> None:
        """Makes tokens large beside what layers add to them."""
        with torch.no_grad():
            self.whole.get_input_embeddings().weight *= 12
            for name, weight in self.whole.named_parameters():
                if name.endswith(("o_proj.weight", "out_proj.weight")) or "down_proj" in name:
                    weight.mul_(0.1)
        self.whole.save_pretrained(self.folder)

    def _tell(self, **said: Any) -> None:
        file = self.folder / "config.json"
        config = json.loads(file.read_text())
        config["num_hidden_layers"] = self.number
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][: self.number]
        file.write_text(json.dumps({**config, **said}))

    @torch.inference_mode()
    def after(self, tokens: Sequence[int], number: int) -> list[int]:
        """So many tokens that the layer predicts behind these."""
        known = list(tokens)
        hidden = self.model(torch.tensor([known[:-1]])).last_hidden_state[0]
        for _ in range(number):
            result, hidden_next = self._run(known, hidden)
            known.append(int(self.whole.lm_head(result[-1]).argmax()))
            hidden = torch.cat([hidden, (result if self.parts.normed else hidden_next)[-1:]])
        return known[len(tokens) :]

    def _run(self, tokens: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The block's results [n, hidden size] behind and before the last norm."""
        ahead = self.model.embed_tokens(torch.tensor(tokens[1:]))
        both = torch.cat([self._norm(ahead, self.norms[0]), self._norm(hidden, self.norms[1])], dim=-1)
        x = (both @ self.projection.T)[None]
        places = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        turned = self.model.rotary_emb(x, places)
        found = self.block(x, attention_mask=mask, position_ids=places, position_embeddings=turned)
        total = (found[0] if isinstance(found, tuple) else found)[0]
        return self._norm(total, self.norms[2]), total

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        eps = self.whole.config.rms_norm_eps
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
