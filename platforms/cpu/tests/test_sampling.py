"""Native sampling beside its definition, core's reference: every instruction set, both kinds of logits, vocabularies
that divide by nothing. A draw may be another where two scores, or an entry and the edge of a filter, are closer than
float32 rounds; such draws are checked to be so close, and counted: none of 16,384 was when this was written."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.platform import (
    BoundOps,
    EditLogitsSpec,
    Edits,
    History,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    Sampled,
    SampleSpec,
    SamplingRows,
    TakeLogitsSpec,
)
from tessera.testing import REFERENCE
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

PLATFORM = CpuPlatform()
REFERENCE_OPS = BoundOps(REFERENCE, PLATFORM.open(0))
GOLDEN = 0x9E3779B9
VOCABS = (1, 7, 33, 64, 1000, 8193, 151_936)
NONE, INFINITE = float("nan"), float("inf")

pytestmark = needs_kernels
every_set = pytest.mark.parametrize("name", available())
both = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


def ours(name: str, spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    with kernels(name):
        sampled: Sampled = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("sample", spec)(logits, rows)
        return sampled


def asked(count: int, seed: int = 0, **columns: Tensor | float) -> SamplingRows:
    """Nothing is filtered and the temperature is 1, but for the columns that are named."""
    random = torch.Generator().manual_seed(seed)
    chosen = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **columns}
    dtypes = {"top_k": torch.int32}
    return SamplingRows(
        **{
            column: torch.as_tensor(value).to(dtypes.get(column, torch.float32)).expand(count).contiguous()
            for column, value in chosen.items()
        },
        seed=torch.randint(-(2**31), 2**31, (count, 2), generator=random).to(torch.int32),
        position=torch.randint(0, 2**31, (count,), generator=random).to(torch.int32),
    )


def mixed(count: int, seed: int = 0) -> SamplingRows:
    """Each filter is off for some rows; some are greedy."""
    random = torch.Generator().manual_seed(seed + 1)
    place = torch.arange(count)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=random)

    return asked(
        count,
        seed,
        temperature=torch.where(place % 7 == 3, 0.0, between(0.3, 2.5)),
        top_k=torch.where(place % 2 == 0, 0, torch.randint(1, 400, (count,), generator=random)),
        top_p=torch.where(place % 3 == 0, 1.0, between(0.05, 1.0)),
        min_p=torch.where(place % 4 < 2, 0.0, between(0.0, 0.3)),
    )


@cache
def spread(rows: int, vocab: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Some rows are flat, some have few likely entries; beside them lies what is none."""
    random = torch.Generator().manual_seed(vocab + seed)
    width = torch.tensor([0.5, 2.0, 4.0]).repeat(rows)[:rows, None]
    wide = torch.full((rows, vocab + 3), NONE, dtype=dtype)
    return wide[:, :vocab].copy_(torch.randn(rows, vocab, generator=random) * width)


def uniforms(rows: SamplingRows, vocab: int) -> Tensor:
    """docs/decisions/randomness.md in NumPy: [S, vocab] float32 in (0, 1)."""

    def mixed_words(x: np.ndarray) -> np.ndarray:
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
        x = (x ^ x >> np.uint32(15)) * np.uint32(0xD35A2D97)
        return x ^ x >> np.uint32(15)

    low, high = rows.seed.numpy().view(np.uint32).T
    place = rows.position.numpy().astype(np.uint32)
    key = mixed_words(mixed_words(low ^ np.uint32(GOLDEN)) + place)
    other = mixed_words(mixed_words(high + place) ^ key)
    entries = np.arange(vocab, dtype=np.uint32) * np.uint32(GOLDEN)
    bits = mixed_words(mixed_words(entries ^ key[:, None]) + other[:, None]) >> np.uint32(9)
    return torch.from_numpy((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2**-23))


def filtered(scaled: Tensor, rows: SamplingRows, slack: float) -> Tensor:
    """In float64, one filter after the other. slack: how much more min_p and top_p keep."""
    least = scaled.amax(-1, keepdim=True) + (rows.min_p[:, None].double() * (1 - slack)).log()
    order = scaled.masked_fill(scaled < least, -INFINITE).sort(dim=-1, descending=True, stable=True)
    place = torch.arange(scaled.shape[-1])
    limit = torch.where(rows.top_k > 0, rows.top_k, scaled.shape[-1])[:, None]
    values = order.values.masked_fill(place >= limit, -INFINITE)
    likely = torch.softmax(values, -1)
    behind = likely.cumsum(-1) - likely >= rows.top_p[:, None] + slack
    values = values.masked_fill(behind & (place > 0) & (rows.top_p[:, None] < 1), -INFINITE)
    return torch.full_like(scaled, -INFINITE).scatter(-1, order.indices, values)


def scores(logits: Tensor, rows: SamplingRows, slack: float) -> Tensor:
    """What the definition draws the largest of."""
    scaled = (logits.float() / torch.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]).double()
    noise = -torch.log(-torch.log(uniforms(rows, logits.shape[-1]).double()))
    return torch.where(rows.temperature[:, None] > 0, filtered(scaled, rows, slack) + noise, logits.double())


def assert_drawn(found: Tensor, logits: Tensor, rows: SamplingRows, most: int = 0) -> None:
    """most: how many draws may be others than the reference's."""
    spec = SampleSpec(logits.shape[-1], filters=True)
    expected = REFERENCE_OPS.bind("sample", spec)(logits, rows).tokens
    other = found != expected
    assert int(other.sum()) <= most, (found[other], expected[other])
    checked = slice(None) if logits.shape[-1] < 10_000 else other
    left, picked = logits[checked], SamplingRows(*(column[checked] for column in rows))
    own = scores(left, picked, 1e-4).gather(-1, found[checked, None].long())[:, 0]
    best = scores(left, picked, -1e-4).amax(-1)
    assert (own >= best - 1e-5 * (1 + best.abs())).all()


@every_set
@both
@pytest.mark.parametrize("vocab", VOCABS)
def test_the_largest_is_the_first_of_its_size(name: str, dtype: torch.dtype, vocab: int) -> None:
    for rows in (0, 1, 5):
        logits = spread(rows, vocab, dtype)
        found = ours(name, SampleSpec(vocab, greedy=True), logits, asked(rows))
        assert found.tokens.dtype == torch.int32
        assert torch.equal(found.tokens.long(), logits.float().argmax(-1))
        assert found[1:] == (None, None, None)


@every_set
@both
@pytest.mark.parametrize("greedy", [True, False])
def test_rows_of_which_noise_does_not_decide(name: str, dtype: torch.dtype, greedy: bool) -> None:
    vocab = 9000
    logits = spread(9, vocab, dtype).clone()
    logits[0] = -INFINITE
    logits[1, 4321:] = INFINITE
    logits[2, [70, 8999]] = NONE
    logits[3, [64, 65]] = torch.tensor([INFINITE, NONE], dtype=dtype)
    logits[4, [8998, 8999]] = torch.tensor([-NONE, NONE], dtype=dtype)
    logits[5] = -INFINITE
    logits[5, 8999] = -3.0
    logits[6] = NONE
    expected = [0, 4321, 70, 65, 8998, 8999, 0]
    rows = asked(9, temperature=0.7, top_p=torch.tensor([1.0, 0.5, 1.0] * 3), top_k=torch.arange(9))
    found = ours(name, SampleSpec(vocab, greedy=greedy, filters=not greedy), logits, rows).tokens
    assert found[:7].tolist() == expected
    assert logits[:7].float().argmax(-1).tolist() == expected


@every_set
def test_zeros_of_either_sign_are_the_same(name: str) -> None:
    logits = torch.full((2, 200), -1.0)
    logits[0, [30, 130]] = torch.tensor([-0.0, 0.0])
    logits[1, [30, 130]] = torch.tensor([0.0, -0.0])
    assert ours(name, SampleSpec(200, greedy=True), logits, asked(2)).tokens.tolist() == [30, 30]
    rows = asked(2, top_k=2)
    drawn = {tuple(ours(name, SampleSpec(200, filters=True), logits, rows._replace(seed=rows.seed + i)).tokens.tolist())
             for i in range(12)}  # fmt: skip
    assert {token for pair in drawn for token in pair} == {30, 130}


@every_set
@both
@pytest.mark.parametrize("vocab", VOCABS)
def test_draws_are_those_of_the_definition(name: str, dtype: torch.dtype, vocab: int) -> None:
    count = 12 if vocab > 100_000 else 60
    logits = spread(count, vocab, dtype)
    for rows in (asked(count, vocab), mixed(count, vocab)):
        found = ours(name, SampleSpec(vocab, filters=rows.top_k.any().item()), logits, rows).tokens
        assert_drawn(found, logits, rows, most=1)


@every_set
def test_equal_logits_are_told_apart_by_noise_alone(name: str) -> None:
    """Each of the 2^23 numbers that noise is made from has the same chance; those near the largest decide."""
    count, vocab = 24, 151_936
    rows = asked(count, 5)
    found = ours(name, SampleSpec(vocab), torch.zeros(count, vocab, dtype=torch.bfloat16), rows).tokens
    assert torch.equal(found.long(), uniforms(rows, vocab).argmax(-1))


FILTERS = {
    "no more than there are": {"top_k": 5000},
    "one": {"top_k": 1},
    "of equal ones the first": {"top_k": 3},
    "more than blocks": {"top_k": 700},
    "nearly nothing": {"top_p": 1e-6},
    "half": {"top_p": 0.5},
    "nearly everything": {"top_p": 0.9999},
    "the largest alone": {"min_p": 1.0},
    "all together": {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
    "the narrower": {"top_k": 2000, "min_p": 0.4},
}


@every_set
@both
@pytest.mark.parametrize("temperature", [1e-6, 0.6, 1.0, 50.0])
@pytest.mark.parametrize("which", FILTERS)
def test_filters(name: str, dtype: torch.dtype, temperature: float, which: str) -> None:
    count, vocab = 40, 2900
    logits = spread(count, vocab, dtype, 1).clone()
    logits[::5] = logits[::5].round()  # many are equal
    logits[7, 100:] = -INFINITE
    rows = asked(count, 3, temperature=temperature, **FILTERS[which])
    found = ours(name, SampleSpec(vocab, filters=True), logits, rows).tokens
    assert_drawn(found, logits, rows, most=1)


@every_set
def test_other_entries_are_drawn_as_often_as_they_are_likely(name: str) -> None:
    """Chi-square over what top_k leaves of a vocabulary of many blocks, well beyond the 99.9th percentile."""
    number, kept = 4000, 6
    logits = torch.full((1, 700), -2.0)
    logits[0, 100:700:100] = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, -1.5])
    rows = asked(number, 8, top_k=kept)
    drawn = ours(name, SampleSpec(700, filters=True), logits.expand(number, -1), rows).tokens.bincount(minlength=700)
    likely = torch.softmax(logits[0, 100:700:100], -1) * number
    counts = drawn[100:700:100]
    assert int(counts.sum()) == number
    assert float(((counts - likely) ** 2 / likely).sum()) < kept - 1 + 4.5 * (2 * kept) ** 0.5 + 8


def test_threads_change_no_draw() -> None:
    for count in (1, 5):
        logits = spread(count, 151_936, torch.bfloat16, 2)
        for rows in (asked(count, 1), mixed(count, 1)):
            spec = SampleSpec(151_936, filters=True, logprobs=4)
            one = ours(available()[0], spec, logits, rows)
            draw = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("sample", spec)
            try:
                native.use_threads(native.library(), 3)
                for _ in range(20):
                    for mine, expected in zip(draw(logits, rows), one, strict=True):
                        assert torch.equal(mine, expected)
            finally:
                native.use_threads(native.library(), 1)


@every_set
@both
@pytest.mark.parametrize(("vocab", "number"), [(1, 0), (7, 7), (33, 1), (1000, 20), (8193, 300), (151_936, 5)])
def test_log_probabilities_ranks_and_the_most_likely(name: str, dtype: torch.dtype, vocab: int, number: int) -> None:
    logits = spread(6, vocab, dtype, 4)
    tokens = torch.randint(0, vocab, (6,), generator=torch.Generator().manual_seed(vocab), dtype=torch.int32)
    tokens[0] = logits[0].float().argmax()
    with kernels(name):
        ops = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0))
        found = ops.bind("logprobs", LogprobsSpec(vocab, number))(logits, tokens)
    expected = REFERENCE_OPS.bind("logprobs", LogprobsSpec(vocab, number))(logits, tokens)
    # torch sums a whole vocabulary in floats, in an order that depends on the processor.
    assert torch.allclose(found.logprobs, expected.logprobs, rtol=1e-5, atol=1e-4)
    exact = logits.double().log_softmax(-1).gather(1, found.ids.long())
    assert torch.allclose(found.logprobs.double(), exact, rtol=1e-6, atol=5e-6)
    assert torch.equal(found.ids[:, 0], tokens)
    order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :number]
    assert torch.equal(found.ids[:, 1:].long(), order)
    values = torch.log_softmax(logits.double(), -1)
    apart = (values - values.gather(-1, tokens[:, None].long())).abs()
    near = (apart < 2e-6).sum(-1) - 1  # float32 loses some of the differences
    assert ((found.ranks - expected.ranks).abs() <= near).all()
    assert int(found.ranks[0]) == 1


@every_set
def test_log_probabilities_where_there_are_none(name: str) -> None:
    logits = torch.randn(4, 100)
    logits[0, 5] = NONE
    logits[1] = -INFINITE
    logits[2, 3] = INFINITE
    logits[3, 2:] = -INFINITE
    with kernels(name):
        ops = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0))
        found = ops.bind("logprobs", LogprobsSpec(100, 4))(logits, torch.tensor([1, 2, 3, 50], dtype=torch.int32))
    assert found.logprobs[:3].isnan().all()
    assert found.ranks.tolist() == [1, 1, 1, 3]
    assert ((found.ids >= 0) & (found.ids < 100)).all()
    assert set(found.ids[3, 1:3].tolist()) == {0, 1}
    assert found.ids[3, 3:].tolist() == [2, 3]
    assert (found.logprobs[3, [0, 3, 4]] == -INFINITE).all()


def test_half_precision_is_drawn_from_too() -> None:
    logits = spread(5, 1000, torch.float16)
    rows = asked(5, 2)
    assert_drawn(ours(available()[0], SampleSpec(1000), logits, rows).tokens, logits, rows)


def test_without_native_kernels_the_reference_draws() -> None:
    logits, rows = spread(5, 1000, torch.bfloat16), mixed(5)
    with kernels("torch"):
        ops = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0))
        found = ops.bind("sample", SampleSpec(1000, filters=True))(logits, rows)
        assert ops.fallbacks
    assert_drawn(found.tokens, logits, rows)


@every_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
def test_masked_rows_keep_what_their_bits_allow(name: str, vocab: int, dtype: torch.dtype) -> None:
    """Rows with a stride, one of them twice; words whose bits are all set, all clear, and mixed."""
    random = torch.Generator().manual_seed(vocab)
    words = -(-vocab // 32)
    bits = torch.randint(-(2**31), 2**31, (4, words), generator=random).to(torch.int32)
    bits[:, ::3], bits[:, 1::3] = -1, 0
    rows, bits = torch.tensor([5, 0, 2, 2], dtype=torch.int32), bits[[0, 1, 2, 2]]
    room = torch.randn(6, vocab + 9, generator=random).to(dtype)
    expected = room.clone()
    with kernels(name):
        BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("mask_logits", MaskLogitsSpec(vocab))(
            room[:, :vocab], rows, bits
        )
    REFERENCE_OPS.bind("mask_logits", MaskLogitsSpec(vocab))(expected[:, :vocab], rows, bits)
    assert room.equal(expected)


@every_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
def test_taken_rows_are_copies_in_float32(name: str, vocab: int, dtype: torch.dtype) -> None:
    """Rows with a stride, in any order, one of them twice; what is no number is copied as it is."""
    room = torch.randn(6, vocab + 9, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    room[2, 0], room[5, vocab - 1], room[0, vocab // 2] = -INFINITE, INFINITE, NONE
    rows = torch.tensor([5, 0, 2, 2], dtype=torch.int32)
    with kernels(name):
        found = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("take_logits", TakeLogitsSpec(vocab))(
            room[:, :vocab], rows
        )
    expected = room[rows.long(), :vocab].float()
    assert found.dtype == torch.float32
    assert found.nan_to_num(123.0).equal(expected.nan_to_num(123.0))
    before = room[2, 0].clone()
    found.zero_()
    assert room[2, 0] == before


def histories(rows: int, vocab: int, length: int, random: torch.Generator) -> History:
    """Tokens repeat often; what follows the known ones, and rows of the table that are not named, are no tokens."""
    known = torch.randint(0, length + 1, (rows,), generator=random).to(torch.int32)
    known[0], known[-1] = length, 0
    table = torch.full((rows + 3, length + 5), 2**31 - 1, dtype=torch.int32)
    named = torch.randperm(rows + 3, generator=random)[:rows].to(torch.int32)
    for row, number in zip(named.tolist(), known.tolist(), strict=True):
        table[row, :number] = torch.randint(0, min(vocab, 9), (number,), generator=random).to(torch.int32)
    prompt = (known * torch.rand(rows, generator=random)).to(torch.int32)
    return History(table[:, :length], named, prompt, known)


def of_reference(history: History) -> History:
    """The reference reads what is no token too, and forgets it."""
    return history._replace(tokens=torch.where(history.tokens == 2**31 - 1, 0, history.tokens))


@every_set
@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("vocab", VOCABS)
def test_edits_are_those_of_the_reference(name: str, vocab: int, length: int) -> None:
    """Several of one logit add up, in the order in which they come; padding adds 0; -inf stays."""
    random, rows, number = torch.Generator().manual_seed(vocab + length), 7, 60
    history = histories(rows, vocab, 23, random)
    width = torch.randint(0, length + 1, (number,), generator=random)
    row = torch.randint(0, rows, (number,), generator=random)
    prefix = torch.randint(0, min(vocab, 9), (number, length), generator=random)
    for place in range(0, number, 2):  # half of the prefixes are what the row ends in, if it is long enough
        end = int(history.num_tokens[row[place]])
        tokens = history.tokens[int(history.rows[row[place]]), max(0, end - length) : end]
        prefix[place, length - len(tokens) :] = tokens
    value = torch.randn(number, generator=random)
    edits = Edits(
        row=row.to(torch.int32),
        token=torch.randint(0, min(vocab, 12), (number,), generator=random).to(torch.int32),
        value=torch.where(torch.arange(number) % 5 == 0, -INFINITE, torch.where(row % 3 == 0, 0.0, value)),
        until=torch.randint(0, 40, (number,), generator=random).to(torch.int32),
        prefix=torch.where(torch.arange(length) < length - width[:, None], -1, prefix).to(torch.int32),
    )
    room = torch.randn(rows, vocab + 5, generator=random)
    expected, spec = room.clone(), EditLogitsSpec(vocab, length)
    with kernels(name):
        BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("edit_logits", spec)(room[:, :vocab], history, edits)
    REFERENCE_OPS.bind("edit_logits", spec)(expected[:, :vocab], of_reference(history), edits)
    assert room.equal(expected)


@every_set
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocab", VOCABS)
def test_penalties_are_those_of_the_reference(name: str, vocab: int, threads: int) -> None:
    """Long histories, so that threads share the rows; some rows have no penalty, some one of them."""
    random, rows = torch.Generator().manual_seed(vocab), 9
    history, place = histories(rows, vocab, 1200, random), torch.arange(rows)

    def drawn(low: float, high: float, off: float, every: int) -> Tensor:
        return torch.where(place % every == 0, off, low + (high - low) * torch.rand(rows, generator=random))

    penalties = Penalties(drawn(-2, 2, 0.0, 2), drawn(-2, 2, 0.0, 3), drawn(0.5, 2, 1.0, 4))
    room = torch.randn(rows, vocab + 5, generator=random)
    room[:, 0] = -INFINITE
    expected = room.clone()
    with kernels(name):
        penalise = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0)).bind("penalise", PenaliseSpec(vocab))
        try:
            native.use_threads(native.library(), threads)
            penalise(room[:, :vocab], history, penalties)
        finally:
            native.use_threads(native.library(), 1)
    REFERENCE_OPS.bind("penalise", PenaliseSpec(vocab))(expected[:, :vocab], of_reference(history), penalties)
    torch.testing.assert_close(room, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["take_logits", "edit_logits", "penalise"])
def test_without_native_kernels_the_reference_changes_logits(op: str) -> None:
    spec = {"take_logits": TakeLogitsSpec, "edit_logits": EditLogitsSpec, "penalise": PenaliseSpec}[op](97)
    with kernels("torch"):
        ops = BoundOps(PLATFORM.ops(REFERENCE), PLATFORM.open(0))
        ops.bind(op, spec)
    assert ops.choices[op, spec].how == "reference"
