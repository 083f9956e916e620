"""Indexers, and attention over what they select, against definitions that share no code with them."""

from __future__ import annotations

import pytest
import torch

from tessera.reference.latent import ReferenceLatentAttention
from tessera.reference.sparse_attention import ReferenceIndexer, ReferenceSparseLatentAttention
from tessera.testing import TOLERANCES
from tessera.testing.conformance.sparse_attention import selection_fault
from tessera.testing.latent import LatentCase, LatentTrial
from tessera.testing.sparse_attention import (
    IndexerCase,
    IndexerTrial,
    SparseLatentCase,
    SparseLatentTrial,
    indexer_cases,
    sparse_latent_cases,
)

SIZES = ((16, "float32"), (24, "float32"), (1, "bfloat16"))
INDEXERS = [
    pytest.param(case, id=f"{name}-{size}-{dtype}")
    for size, dtype in SIZES
    for name, case in indexer_cases(size, dtype)
]
LATENTS = [
    pytest.param(case, id=f"{name}-{size}-{dtype}")
    for size, dtype in SIZES
    for name, case in sparse_latent_cases(size, dtype)
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", INDEXERS)
def test_an_indexer_selects_the_best(case: IndexerCase) -> None:
    trial = IndexerTrial(ReferenceIndexer(), case)
    tolerance = 0.0 if case.whole else 1e-5
    for found, scores in zip(trial.run(), trial.expected(), strict=True):
        assert found.dtype == torch.int32
        for tokens, of_query in zip(found.long(), scores, strict=True):
            assert selection_fault(tokens, of_query, case.limit, tolerance) is None


@pytest.mark.parametrize("case", LATENTS)
def test_attention_over_what_is_selected(case: SparseLatentCase) -> None:
    trial = SparseLatentTrial(ReferenceSparseLatentAttention(), case)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[case.dtype], atol=TOLERANCES[case.dtype])


def test_with_all_tokens_selected_it_is_latent_attention() -> None:
    rows = (1, 40), (9, 9), (5, 30)
    sparse = SparseLatentTrial(ReferenceSparseLatentAttention(), SparseLatentCase(rows, limit=64))
    for selection, (tokens, length) in zip(sparse.selections, rows, strict=True):
        for query in range(tokens):
            seen = length - tokens + query + 1
            selection[query] = torch.where(torch.arange(64) < seen, torch.arange(64), -1)
    whole = LatentTrial(ReferenceLatentAttention(), LatentCase(rows))
    assert all(map(torch.equal, sparse.run(), whole.run()))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([0, 2], None),
        ([2, 0], None),
        ([0, 1], "leaves out [2]"),
        ([0, 0], "each of them once"),
        ([0, -1], "each of them once"),
        ([0, 4], "sees tokens 0 to 3 alone"),
    ],
)
def test_what_is_wrong_with_a_selection(tokens: list[int], words: str | None) -> None:
    scores = torch.tensor([3.0, 1.0, 2.0, 0.5, -torch.inf])
    found = selection_fault(torch.tensor(tokens), scores, 2, 1e-5)
    assert (found is None) if words is None else (found is not None and words in found)
