"""The text model of a checkpoint that has one for images beside it: answers and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tessera.config.modalities import TOWERS
from tessera.models.text_model import NOTE
from tests.platforms.engine_run import EngineRun
from tools.parity.families import DELTA_NET, SHARED_EXPERT
from tools.parity.family import SIZES, Family, save_model
from tools.parity.through_transformers import TYPES

MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2]}}
WINDOWED = {"head_dim": 18, "sliding_window": 7, "query_pre_attn_scalar": 18, "num_hidden_layers": 6}
TEXT: dict[str, dict[str, Any]] = {
    "Gemma3": WINDOWED,
    "Gemma4": {**TYPES["gemma4_text"], "pad_token_id": 0},
    "Llama4": {
        "head_dim": 18, "num_local_experts": 3, "intermediate_size_mlp": 40, "attention_chunk_size": 6,
        "no_rope_layer_interval": 2,
    },
    "Mistral3": {},
    "Qwen2VL": MROPE,
    "Qwen2_5_VL": MROPE,
    "Qwen3VL": MROPE,
    "Qwen3VLMoe": {
        **MROPE, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 44, "norm_topk_prob": True,
        "experts_implementation": "eager",
    },
    "Qwen3_5": DELTA_NET,
    "Qwen3_5Moe": {**DELTA_NET, **SHARED_EXPERT},
}  # fmt: skip
VISION = {
    "depth": 1, "num_hidden_layers": 1, "hidden_size": 24, "num_heads": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "out_hidden_size": 72, "deepstack_visual_indexes": [],
}  # fmt: skip
PROMPTS = [[3, 5, 8, 13, 21, 34, 55, 89, 4, 9, 16, 25, 36], [7]]
ANSWERED = 6


def made(name: str) -> Any:
    config_class = getattr(transformers, f"{name}Config")
    text = config_class.sub_configs["text_config"]
    if name == "Mistral3":
        text = transformers.MistralConfig
    config = config_class(text_config=text(**{**SIZES, "tie_word_embeddings": False, **TEXT[name]}).to_dict())
    config.tie_word_embeddings = False
    config.text_config._attn_implementation = config._attn_implementation = "eager"
    for field, value in VISION.items():
        if hasattr(config.vision_config, field):
            setattr(config.vision_config, field, value)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def expected(model: Any) -> list[list[int]]:
    answers = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(ANSWERED):
            with torch.inference_mode():
                tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def ask(folder: Path) -> tuple[list[list[int]], tuple[str, ...]]:
    with EngineRun(folder, "cpu") as run:
        return run.ask(PROMPTS, ANSWERED, ignore_eos=True), run.engine.info.notes


@pytest.mark.parametrize("name", TEXT)
def test_text_is_answered_as_by_the_whole(tmp_path: Path, name: str) -> None:
    model = save_model(Family(name, lambda: made(name)), tmp_path)
    answers, notes = ask(tmp_path)
    assert answers == expected(model)
    assert (NOTE in notes) == (f"{name}ForConditionalGeneration" not in TOWERS)


@pytest.mark.parametrize("exchanged", [False, True])
def test_experts_may_be_stored_together(tmp_path: Path, exchanged: bool) -> None:
    model = save_model(Family("stacked", lambda: made("Qwen3_5Moe")), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    for layer in {name.partition(".experts.")[0] for name in weights if ".experts." in name}:
        gate, up, down = (
            [weights.pop(f"{layer}.experts.{expert}.{part}_proj.weight") for expert in range(5)]
            for part in ("gate", "up", "down")
        )
        both = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
        for part, stacked in (("gate_up", both), ("down", torch.stack(down))):
            weights[f"{layer}.experts.{part}_proj"] = stacked.mT.contiguous() if exchanged else stacked
    save_file(weights, file, metadata={"format": "pt"})
    assert ask(tmp_path)[0] == expected(model)
