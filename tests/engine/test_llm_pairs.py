"""Models that read two texts at once, as transformers has them: a tiny BERT with one label, whose tokenizer joins pairs
by a template with token types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

from tessera import LLM
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tests.engine.test_llm_pooling import OPTIONS

QUERY = "where is it?"
DOCUMENTS = ["abc", "over there.", "xyz zyx", "a"]
SPECIAL = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3}
LABELS = ("no", "perhaps", "yes")


def letters() -> tokenizers.Tokenizer:
    """A token a letter."""
    vocabulary = SPECIAL | {letter: 4 + number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz?.")}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
    )
    return tokenizer


def save(folder: Path, labels: tuple[str, ...]) -> Any:
    """Returns transformers' model."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=41, hidden_size=72, intermediate_size=84, num_hidden_layers=3, num_attention_heads=6,
        max_position_embeddings=48, pad_token_id=1, id2label=dict(enumerate(labels)),
    )  # fmt: skip
    model = BertForSequenceClassification(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model


def logits(model: Any, *texts: str, longest: int | None = None) -> torch.Tensor:
    """Of one text or a pair."""
    tokenizer = letters()
    if longest is not None:
        tokenizer.enable_truncation(longest)
    encoded = tokenizer.encode(*texts)
    ids, types = torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, token_type_ids=types).logits[0]
    return found


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("reranker")
    return folder, save(folder, ("LABEL_0",))


def test_scores_of_pairs(reranker: tuple[Path, Any]) -> None:
    folder, model = reranker
    with LLM(str(folder), **OPTIONS) as llm:
        for keywords, longest in (({}, None), ({"truncate_prompt_tokens": 9}, 9), ({"truncate_prompt_tokens": -1}, 48)):
            for raw in (False, True):
                params = PoolingParams(use_activation=not raw, **keywords)
                found = llm.score(QUERY, DOCUMENTS, use_tqdm=False, pooling_params=params)
                expected = torch.cat([logits(model, QUERY, text, longest=longest) for text in DOCUMENTS])
                expected = expected if raw else torch.sigmoid(expected)
                np.testing.assert_allclose([one.outputs.score for one in found], expected, atol=2e-5)
        with pytest.raises(RequestError, match="context length is 48") as long:
            llm.score(QUERY, ["a", "b" * 48], use_tqdm=False)
        assert long.value.param == "data_2[1]"


def test_a_second_text_is_no_continuation_of_the_first(reranker: tuple[Path, Any]) -> None:
    """Its tokens have another type; without, the numbers would be those of one text."""
    _, model = reranker
    pair = letters().encode("ab", "cd")
    ids = torch.tensor([pair.ids])
    with torch.no_grad():
        untyped = model(input_ids=ids, token_type_ids=torch.zeros_like(ids)).logits[0]
    assert abs(float(untyped - logits(model, "ab", "cd"))) > 1e-3


def test_classes_are_no_scores(tmp_path: Path) -> None:
    model = save(tmp_path, LABELS)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        (found,) = llm.classify("where is it?", use_tqdm=False)
        np.testing.assert_allclose(found.outputs.probs, logits(model, QUERY).softmax(0), atol=2e-5)
        (raw,) = llm.classify(QUERY, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        np.testing.assert_allclose(raw.outputs.probs, logits(model, QUERY), atol=2e-5)
        with pytest.raises(RequestError, match="3 labels"):
            llm.score("a", "b", use_tqdm=False)
