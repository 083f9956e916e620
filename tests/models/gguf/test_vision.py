"""A model that reads images, from the GGUF files of its text model and of its tower, answers as transformers does from
the weights that the files were written from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from tests.models.answers import answers_of
from tests.models.gguf.tower_writer import write_text, write_tower
from tools.parity import image_kinds as kinds
from tools.parity.compare import Cell
from tools.parity.family import Family, save_model
from tools.parity.images import Images
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import Answer, ask_family
from tools.parity.vision import WITH_IMAGES
from tools.parity.vision_maker import PIXTRAL, SIGLIP, maker, text

SAME = ("llava", "idefics3", "internvl", "mistral3", "qwen2-vl", "qwen2.5-vl", "qwen3-vl")
OWN = (
    Family(
        "gemma3-tower",
        maker(
            "gemma3",
            text(
                "gemma3_text", num_hidden_layers=4, head_dim=18, query_pre_attn_scalar=18, sliding_window=7,
                sliding_window_pattern=3,
            ),
            SIGLIP,
            mm_tokens_per_image=4,
        ),
        images=Images(kinds.TOKEN, kinds.square_between(20, 4), kinds="token_type_ids"),
    ),
    Family(
        "pixtral-tower",
        maker(
            "llava",
            text("mistral", sliding_window=None),
            {**PIXTRAL, "patch_size": 10},
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        images=Images(kinds.TOKEN, kinds.in_rows),
    ),
)  # fmt: skip
ALL: dict[str, Family] = {**{name: WITH_IMAGES[name] for name in SAME}, **{family.name: family for family in OWN}}


WIDE = {**SIGLIP, "hidden_size": 96, "intermediate_size": 160}
"""Rows of its matrices have whole blocks of 32."""
QUANTIZED = Family(
    "gemma3-tower-q8_0",
    maker("gemma3", text("gemma3_text", head_dim=18, query_pre_attn_scalar=18), WIDE, mm_tokens_per_image=4),
    images=ALL["gemma3-tower"].images,
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return answers_of(ALL, tmp_path_factory, 4)


@pytest.mark.parametrize("family", ALL)
def test_a_tower_beside_a_file_reads_images_as_its_weights_do(oracle, family, tmp_path):
    _, answers = oracle(family)
    model: Any = save_model(ALL[family], tmp_path)
    path = write_text(model, tmp_path / "model.gguf")
    write_tower(model, tmp_path / "mmproj-model.gguf")
    _check(ALL[family], path, answers)


def test_a_tower_in_blocks_is_what_its_blocks_say(tmp_path):
    model: Any = save_model(QUANTIZED, tmp_path)
    path = write_text(model, tmp_path / "model.gguf")
    write_tower(model, tmp_path / "mmproj-model.gguf", Type.Q8_0)
    with torch.no_grad():
        for name, weight in model.model.vision_tower.named_parameters():
            if weight.dim() == 2 and weight.shape[-1] % 32 == 0:
                blocks = quantize(weight.numpy(), Type.Q8_0)
                assert not np.array_equal(dequantize(blocks, Type.Q8_0), weight), name
                weight.copy_(torch.from_numpy(dequantize(blocks, Type.Q8_0)))
    _check(QUANTIZED, path, ask_family(QUANTIZED, model, 4))


def _check(family: Family, path: Path, answers: Sequence[Answer]) -> None:
    compared, evidence = MODES["mixed batch"](Subject(path, PLATFORMS["strict"], answers, family.max_model_len))
    found = Cell.from_answers(("strict", family.name, "mixed batch"), compared, evidence)
    assert found.ok, found
