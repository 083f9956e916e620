"""LLM with a sparse embedder, as sentence-transformers saves SPLADE: vectors over the vocabulary, whose product is the
score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from tessera import LLM
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tests.engine.test_llm_pairs import DOCUMENTS, QUERY, letters
from tests.engine.test_llm_pooling import OPTIONS

VOCABULARY = 41


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """transformers', saved in tmp_path."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=72, intermediate_size=84, num_hidden_layers=2, num_attention_heads=6,
        max_position_embeddings=48, pad_token_id=1,
    )  # fmt: skip
    model = BertForMaskedLM(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    letters().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    kinds = {"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}
    modules = [
        {"path": path, "type": f"sentence_transformers.sparse_encoder.models.{kind}"} for path, kind in kinds.items()
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_SpladePooling").mkdir()
    (tmp_path / "1_SpladePooling" / "config.json").write_text(json.dumps({"pooling_strategy": "max"}))
    return model


@torch.inference_mode()
def vector(model: Any, text: str) -> np.ndarray:
    logits = model(torch.tensor([letters().encode(text).ids])).logits[0]
    return torch.log1p(torch.relu(logits)).amax(0).numpy()


def test_vectors_and_scores(model: Any, tmp_path: Path) -> None:
    expected = [vector(model, text) for text in (QUERY, *DOCUMENTS)]
    with LLM(tmp_path, **OPTIONS) as llm:
        assert any("a weight for each token of the vocabulary" in note for note in llm._offline._engine.info.notes)
        found = llm.embed([QUERY, *DOCUMENTS], use_tqdm=False)
        np.testing.assert_allclose([one.outputs.embedding for one in found], expected, atol=2e-5)
        scores = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
        np.testing.assert_allclose(scores, [expected[0] @ one for one in expected[1:]], rtol=1e-4)
        with pytest.raises(RequestError, match=f"vectors were made for {VOCABULARY}"):
            llm.embed(QUERY, pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
