"""A tiny random model, created and saved by transformers. No dimension is a multiple of 16, not even of joined matrices
(q, k and v; gate and up)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tools.parity.encoder_inputs import EncoderInputs
from tools.parity.images import Images

MAX_POSITIONS = 96
MATRIX_STD = 0.12
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 101,
        "hidden_size": 72,
        "intermediate_size": 84,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)


@dataclass(frozen=True)
class Family:
    name: str
    # creates the model, with transformers' eager attention unless that is wrong
    make: Callable[[], Any]
    # size of the checkpoint's files, if it should have several
    shard_bytes: int | None = None
    # if different from config.json
    max_model_len: int | None = None
    # gives the saved checkpoint the form of published ones
    publish: Callable[[Path], None] | None = None
    # what its prompts hold beside text
    images: Images | EncoderInputs | None = None


def maker(config_class: Any, model_class: Any, *, fixed_at: int | None = None, **differs: Any) -> Callable[[], Any]:
    """fixed_at: computes the rotary embedding as transformers does for texts of this length, whatever their length. A
    field set to None is omitted from the configuration."""
    sizes = {**SIZES, "tie_word_embeddings": False, "attn_implementation": "eager"}

    def make() -> Any:
        model = model_class(config_class(**{**sizes, **differs}))
        if fixed_at is not None:
            fix_rotary(model, fixed_at)
        return model

    return make


def fix_rotary(model: Any, length: int) -> None:
    """Fixes the rotary embedding for one length; transformers recomputes longrope's factors and dynamic scaling for
    each text."""
    rotary = model.model.rotary_emb
    frequencies, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=length)
    rotary.inv_freq.copy_(frequencies)
    rotary.rope_type = "default"


def padded(config: Any) -> bool:
    """Whether the last token pads: RoBERTa's code gives it no position, so that no text here has it."""
    text = config.get_text_config()
    return bool(text.pad_token_id == text.vocab_size - 1)


def num_prompt_tokens(config: Any) -> int:
    """How many tokens prompts are made of: the first ones of the vocabulary."""
    return int(config.get_text_config().vocab_size) - padded(config)


def _compute_positions(model: Any) -> None:
    """Tables of positions that are computed, and that checkpoints leave out, are what they are."""
    for module in model.modules():
        if hasattr(module, "create_weight"):
            module.weight.copy_(module.create_weight())


def _avoid_last(head: Any) -> None:
    """So that no answer has the last token."""
    if head.bias is None:
        head.weight[-1] = 0.0
    else:
        head.bias[-1] = -100.0


def head_of(model: Any) -> Any:
    """The linear layer over the vocabulary, which the whole of some models does not name."""
    return model.get_output_embeddings() or model.language_model.get_output_embeddings()


def save_model(family: Family, folder: Path, seed: int = 0) -> Any:
    """Creates the family's model with random float32 weights and saves it as a checkpoint. Matrices have a standard
    deviation of MATRIX_STD; norms are in 0.5 to 1.5, biases in -0.5 to 0.5, also saved buffers, such as the biases for
    choosing experts. Convolutions of a few tokens have larger weights, as vectors that are then divided by their length
    would be next to nothing, and states fade slowly."""
    model = family.make().eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("fgate_preact.bias"):
                weight.uniform_(1.0, 5.0, generator=generator)
            elif name.endswith(".bias"):
                weight.uniform_(-0.5, 0.5, generator=generator)
            elif name.endswith(("conv1d.weight", "conv_1d.weight", "conv.conv.weight")):
                weight.normal_(std=0.8, generator=generator)
            elif name.endswith(("A_log", "recurrent_param", "time_decay")):
                weight.uniform_(-4.0, 0.0, generator=generator)
            elif weight.dim() == 1:
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                weight.normal_(std=MATRIX_STD, generator=generator)
        _compute_positions(model)
        saved = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in saved and name.endswith("bias") and buffer.is_floating_point():
                buffer.uniform_(-0.5, 0.5, generator=generator)
        if isinstance(family.images, Images):
            unwritten = [*family.images.others, *family.images.marks]
            head_of(model).weight[-family.images.reserved :] = 0.0  # so that no answer has them
            head_of(model).weight[unwritten] = 0.0
        if padded(model.config):
            _avoid_last(head_of(model))
    model.save_pretrained(folder, **({} if family.shard_bytes is None else {"max_shard_size": family.shard_bytes}))
    if family.publish is not None:
        family.publish(folder)
    return model
