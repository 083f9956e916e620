"""Each architecture from a GGUF file answers as transformers does from the weights that the file was written from."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.models.answers import answers_of
from tests.models.gguf.writer import write_gguf
from tools.parity.compare import Cell
from tools.parity.families import FAMILIES
from tools.parity.family import Family, maker, save_model
from tools.parity.modes import MODES, PLATFORMS, Subject

SAME = ("llama2", "llama3", "llama-linear", "llama-yarn", "smollm", "qwen2", "qwen3", "mixtral", "phi3", "phi4-mini")
SAME += ("granite", "gemma", "olmo2")
OWN = (
    Family(
        "gemma2",
        maker(
            Gemma2Config, Gemma2ForCausalLM, num_hidden_layers=3, head_dim=18, query_pre_attn_scalar=18,
            sliding_window=9, attn_logit_softcapping=5.0, final_logit_softcapping=6.0, tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma3",
        maker(
            Gemma3TextConfig, Gemma3ForCausalLM, num_hidden_layers=7, head_dim=18, query_pre_attn_scalar=18,
            sliding_window=9, sliding_window_pattern=6, tie_word_embeddings=True,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 9000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        ),
    ),
    Family(
        "qwen3-moe",
        maker(
            Qwen3MoeConfig, Qwen3MoeForCausalLM, head_dim=18, num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=44, norm_topk_prob=True, experts_implementation="eager",
        ),
    ),
    Family("smollm3", maker(SmolLM3Config, SmolLM3ForCausalLM, num_hidden_layers=5)),
)  # fmt: skip
ALL: dict[str, Family] = {**{name: FAMILIES[name] for name in SAME}, **{family.name: family for family in OWN}}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return answers_of(ALL, tmp_path_factory, 6)


@pytest.mark.parametrize("family", ALL)
def test_a_file_answers_as_its_weights_do(oracle, family, tmp_path):
    _, answers = oracle(family)
    model: Any = save_model(ALL[family], tmp_path)
    path = write_gguf(model, tmp_path / "model.gguf")
    subject = Subject(path, PLATFORMS["strict"], answers, ALL[family].max_model_len)
    compared, evidence = MODES["mixed batch"](subject)
    found = Cell.from_answers(("strict", family, "mixed batch"), compared, evidence)
    assert found.ok, found
