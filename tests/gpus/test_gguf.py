"""Models whose weights stay in the blocks of a GGUF file: answers are those of decoded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from transformers import LlamaConfig, LlamaForCausalLM

from tessera.engine.plan import plan_here
from tests.gpus.conftest import python_path
from tests.models.gguf.writer import write_gguf
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB
from tools.parity.family import Family, maker, save_model

pytestmark = pytest.mark.compiler
INTERPRETED = "tests.platforms.interpreted:Interpreted"
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 1,
}  # fmt: skip
TIED = Family("llama", maker(LlamaConfig, LlamaForCausalLM, **SIZES, vocab_size=VOCAB, tie_word_embeddings=True))
MIXED = {"attn_v": Type.Q8_0, "ffn_up": Type.BF16, "attn_k": Type.Q5_1}
"""By the name of a tensor, beside Q4_0."""


@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_are_those_of_decoded_weights(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of parts that are stored differently, and rows of the tied head. With two ranks, whole blocks of the
    inputs of some products, and some of the outputs of the others."""
    monkeypatch.setenv("PYTHONPATH", python_path())
    path = write_gguf(save_model(TIED, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)
    found, chosen = answered(path, INTERPRETED, executor=None, tensor_parallel_size=ranks)
    assert {"q4_0, in blocks of 32", "q5_1, in blocks of 32"} <= chosen
    expected, _ = answered(path, "reference")
    assert np.abs(found - expected).max() < 1e-4


def answered(path: Path, platform: str, **flags: Any) -> tuple[np.ndarray, set[str]]:
    """Log probabilities of a question's tokens, and how weights are stored."""
    with EngineRun(path, platform, **flags) as run:
        run.ask([[1, 5, 9, 2, 7]], 1, prompt_logprobs=VOCAB)
        scored = [said for key in run.scored for said in run.scored[key]]
        ids, said = (np.concatenate([getattr(one, name) for one in scored]) for name in ("ids", "logprobs"))
        placed = np.empty((len(ids), VOCAB), np.float32)
        np.put_along_axis(placed, ids[:, 1:].astype(np.int64), said[:, 1:], axis=1)
        return placed, {one.chosen for one in plan_here(run.engine.config).choices}
