"""A trained embedder that pip fetches: its vectors are those of transformers' code, and it finds what is meant."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from tessera import LLM
from tessera.config.locate import HubAccess, locate_model
from tests.docs.steps import Shell, blocks, commands

PAGE = (Path(__file__).parents[2] / "docs/embeddings.md").read_text(encoding="utf-8")
LONGEST = 256
"""Tokens of a text, as sentence_bert_config.json says."""


def texts_of(tokenizer: AutoTokenizer, count: int) -> list[str]:
    """Of 1 to LONGEST tokens, with the first and the last one, from words of the documentation."""
    words = " ".join(path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md"))).split()
    rng, texts = random.Random(5), []
    for number in range(count):
        wanted = 1 + number * (LONGEST - 1) // (count - 1)
        first = rng.randrange(len(words) - wanted)
        ids = tokenizer(" ".join(words[first : first + wanted]), add_special_tokens=False)["input_ids"]
        texts.append(tokenizer.decode(ids[: max(wanted - 2, 1)]))
    rng.shuffle(texts)
    return texts


@torch.no_grad()
def transformers_vectors(folder: Path, tokenizer: AutoTokenizer, texts: list[str]) -> Tensor:
    """As modules.json says: the mean of all tokens' states, normalized."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        vectors.append(F.normalize(model(**ids).last_hidden_state[0].mean(0), dim=0))
    return torch.stack(vectors)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.nightly)])
def test_vectors_and_their_order_are_those_of_transformers(count: int) -> None:
    folder, _ = locate_model("minilm", HubAccess(), weights=True, tokenizer=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = texts_of(tokenizer, count)
    theirs = transformers_vectors(folder, tokenizer, texts)
    with LLM("minilm", platform="cpu", dtype="float32") as llm:
        ours = torch.tensor([output.outputs.embedding for output in llm.embed(texts)])
    assert float(F.cosine_similarity(ours, theirs).min()) >= 0.99999
    scores = [vectors @ vectors[:10].T for vectors in (ours, theirs)]  # of ten texts with all
    gaps = scores[1].sort(dim=0).values.diff(dim=0)
    assert float((scores[0] - scores[1]).abs().max()) < 1e-5
    assert float((gaps > 2e-5).float().mean()) > 0.9  # most are far apart, and these are in the same order
    for own, right in zip(scores[0].T, scores[1].T, strict=True):
        assert float((own[right.argsort()].diff() < -2e-5).float().sum()) == 0


def test_the_page_finds_what_is_meant(tmp_path: Path) -> None:
    (tmp_path / "tessera").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    (tmp_path / "tessera").chmod(0o755)
    (block,) = (block for block in blocks(PAGE) if block.kind == "shell")
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with Shell(tmp_path, environment) as shell:
        for command in commands(block):
            assert len(command.shown) == 2
            shell.run(command)
