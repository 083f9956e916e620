"""Sampling against a plain definition: which tokens may be drawn, how often each is, and what decides."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tessera.ops.sampling import mask_logits, sample, uniforms
from tessera.platform import MaskLogitsSpec, SampleSpec, SamplingRows

PAGE = Path(__file__).parents[3] / "docs/plugins/reference.md"
SPREAD = torch.tensor([2.0, 1.5, 1.0, 0.3, 0.0, -0.5, -1.0, -3.0, -torch.inf])


def words(seed: float | Tensor) -> Tensor:
    """Seeds [S] -> their low and high 32 bits, [S, 2] int32."""
    return torch.as_tensor(seed).long().reshape(-1, 1).contiguous().view(torch.int32)


def rows(count: int, **differs: float | Tensor) -> SamplingRows:
    def column(name: str, value: float, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(differs.get(name, value)).to(dtype).expand(count).contiguous()

    return SamplingRows(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seed=words(differs.get("seed", 0)).expand(count, 2).contiguous(),
        position=column("position", 0, torch.int32),
    )


def draw(logits: Tensor, filters: bool = True, **differs: float | Tensor) -> list[int]:
    batch = logits.expand(len(differs["seed"]), -1) if logits.dim() == 1 else logits
    spec = SampleSpec(batch.shape[-1], filters=filters)
    return sample(spec, batch, rows(len(batch), **differs)).tokens.tolist()


def allowed(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The tokens that may be drawn and their probabilities: min_p, then top_k, then top_p; the first among equals comes
    first."""
    peak = max(logits)
    weights = {i: math.exp((value - peak) / temperature) for i, value in enumerate(logits)}
    total = sum(weights.values())
    kept = {i: w / total for i, w in weights.items() if w / total >= min_p * max(weights.values()) / total and w > 0}
    order = sorted(kept, key=lambda i: -kept[i])[: top_k or None]
    total, before, chosen = sum(kept[i] for i in order), 0.0, {}
    for place, i in enumerate(order):
        if place and top_p < 1.0 and before >= top_p:
            break
        chosen[i] = kept[i]
        before += kept[i] / total
    total = sum(chosen.values())
    return {i: p / total for i, p in chosen.items()}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(params: dict) -> None:
    """Chi-square over 20,000 seeds, well beyond the 99.9th percentile."""
    number = 20_000
    drawn = torch.tensor(draw(SPREAD, seed=torch.arange(number) * 7919 + 12345, position=17, **params))
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **params}
    expected = allowed(SPREAD.tolist(), **full)
    counts = drawn.bincount(minlength=len(SPREAD)).tolist()
    assert {i for i, count in enumerate(counts) if count} <= set(expected)
    chi_square = sum((counts[i] - number * p) ** 2 / (number * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 4.5 * math.sqrt(2 * freedom) + 8, (counts, expected)


def test_consecutive_positions_of_a_seed_are_independent() -> None:
    number, logits = 20_000, torch.zeros(4)
    first = torch.tensor(draw(logits, seed=torch.full((number,), 3), position=torch.arange(number)))
    pairs = (first[:-1] * 4 + first[1:]).bincount(minlength=16).double()
    expected = (number - 1) / 16
    assert float(((pairs - expected) ** 2 / expected).sum()) < 15 + 4.5 * math.sqrt(30) + 8


values = st.floats(-8, 8, allow_nan=False, width=16)


@given(
    logits=st.lists(values, min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.3, 1.0, 1.9]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.05, 0.31, 0.7, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.21, 1.0]),
)
def test_nothing_else_than_allowed_is_drawn(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    slack = 1e-6
    drawn = set(
        draw(
            torch.tensor(logits), seed=torch.arange(200), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
    )
    most = allowed(logits, temperature, top_k, min(top_p + slack, 1.0) if top_p < 1 else 1.0, min_p * (1 - slack))
    assert drawn <= set(most)
    assert max(range(len(logits)), key=logits.__getitem__) in most


def test_each_row_has_its_own_parameters() -> None:
    logits = SPREAD.repeat(5, 1)
    each = {
        "temperature": torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]),
        "top_k": torch.tensor([0, 1, 0, 0, 0]),
        "top_p": torch.tensor([1.0, 1.0, 1e-6, 1.0, 1.0]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]),
    }
    drawn = [draw(logits, seed=torch.full((5,), seed), **each) for seed in range(60)]
    assert {tuple(tokens[:4]) for tokens in drawn} == {(0, 0, 0, 0)}
    assert len({tokens[4] for tokens in drawn}) > 3


def test_noise_depends_on_seed_position_and_entry_alone() -> None:
    seeds = words(torch.tensor([5, -7, 2**63 - 1, 5, 5 + 2**32]))
    positions = torch.tensor([1, 1, 9, 2, 1], dtype=torch.int32)
    whole = uniforms(seeds, positions, 300)
    for i in range(5):
        alone = uniforms(seeds[i : i + 1], positions[i : i + 1], 300)
        assert bool((alone[0] == whole[i]).all())
    assert bool((uniforms(seeds, positions, 100) == whole[:, :100]).all())  # a shard's entries are the whole's
    assert len({tuple(row) for row in whole.tolist()}) == 5


def test_noise_is_uniform_and_never_0_or_1() -> None:
    u = uniforms(words(torch.arange(400)), torch.full((400,), 3, dtype=torch.int32), 500).flatten()
    assert 0.0 < float(u.min()) < 1e-4
    assert 1.0 - 1e-4 < float(u.max()) < 1.0
    counts = (u * 64).long().bincount(minlength=64).double()
    expected = len(u) / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 63 + 4.5 * math.sqrt(126) + 8
    assert torch.isfinite(-torch.log(-torch.log(u))).all()


def test_logprobs_are_of_the_logits_as_they_came() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    sampled = sample(SampleSpec(40, filters=True, logprobs=5), logits, rows(3, temperature=0.4, top_k=2, seed=9))
    expected = torch.log_softmax(logits, -1)
    for row in range(3):
        token = int(sampled.tokens[row])
        order = expected[row].argsort(descending=True)
        assert sampled.ids[row].tolist() == [token, *order[:5].tolist()]
        assert torch.allclose(sampled.logprobs[row], expected[row, sampled.ids[row].long()])
        assert int(sampled.ranks[row]) == order.tolist().index(token) + 1


def test_infinite_logits_are_never_drawn() -> None:
    logits = torch.full((8, 50), -torch.inf)
    logits[:, 20:23] = 0.0
    assert set(draw(logits, seed=torch.arange(8))) <= {20, 21, 22}
    assert set(draw(logits, seed=torch.arange(8), filters=False)) <= {20, 21, 22}


@pytest.mark.parametrize("vocab", [31, 32, 33, 97])
def test_a_mask_leaves_the_tokens_whose_bits_are_set_and_the_rows_that_it_does_not_name(vocab: int) -> None:
    logits = torch.arange(4.0 * vocab).reshape(4, vocab)
    allowed = torch.rand(2, vocab, generator=torch.Generator().manual_seed(vocab)) < 0.5
    words = torch.zeros(2, -(-vocab // 32) * 32, dtype=torch.int64)
    words[:, :vocab] = allowed
    bits = (words.view(2, -1, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    masked = logits.clone()
    mask_logits(MaskLogitsSpec(vocab), masked, torch.tensor([3, 1, 1], dtype=torch.int32), bits[[0, 1, 1]])
    assert masked[[0, 2]].equal(logits[[0, 2]])
    for row, tokens in ((3, allowed[0]), (1, allowed[1])):
        assert masked[row][tokens].equal(logits[row][tokens])
        assert masked[row][~tokens].isneginf().all()


# ---- the noise, as the contract's page says it


def mix(x: int) -> int:
    x = (x ^ x >> 16) * 0x21F0AAAD & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0xD35A2D97 & 0xFFFFFFFF
    return x ^ x >> 15


def noise_bits(seed: int, position: int, v: int) -> int:
    low, high, place = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, position & 0xFFFFFFFF
    key = mix(mix(low ^ 0x9E3779B9) + place & 0xFFFFFFFF)
    other = mix(mix(high + place & 0xFFFFFFFF) ^ key)
    return mix(mix(v * 0x9E3779B9 & 0xFFFFFFFF ^ key) + other & 0xFFFFFFFF) >> 9


def test_the_pages_vectors_are_the_ops_noise() -> None:
    numbers = re.findall(
        r"^\| (-?\d+) \| (\d+) \| (\d+) \| (\d+) \| (-?\d+\.\d{6}) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert len(numbers) == 7
    for *values, said in numbers:
        seed, position, v, bits = map(int, values)
        place = torch.tensor([position], dtype=torch.int32)
        u = uniforms(words(torch.tensor([seed])), place, v + 1)[0, v].item()
        assert bits == noise_bits(seed, position, v)
        assert u == (bits + 0.5) * 2.0**-23
        assert -math.log(-math.log(u)) == pytest.approx(float(said), abs=1e-6)


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**31 - 1))
def test_the_pages_formula_is_the_ops(seed: int, position: int) -> None:
    place = torch.tensor([position], dtype=torch.int32)
    found = uniforms(words(torch.tensor([seed])), place, 50)[0].tolist()
    assert found == [(noise_bits(seed, position, v) + 0.5) * 2.0**-23 for v in range(50)]


def test_a_draw_is_the_largest_sum_of_scaled_logit_and_noise() -> None:
    logits = torch.linspace(-1.0, 2.0, 31)
    for seed in range(20):
        noise = [-math.log(-math.log((noise_bits(seed, seed + 3, v) + 0.5) * 2.0**-23)) for v in range(31)]
        sums = [logit / 0.7 + one for logit, one in zip(logits.tolist(), noise, strict=True)]
        drawn = draw(logits, seed=torch.tensor([seed]), position=torch.tensor([seed + 3]), temperature=0.7)
        assert drawn == [sums.index(max(sums))]
