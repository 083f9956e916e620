"""Samples tokens from logits and returns their log probabilities; before that, masks, edits and penalties change the
logits.

A draw is the argmax of scaled logits plus Gumbel noise, which samples from their softmax; the noise of vocabulary entry
v is a hash of (seed, position, v), so it does not depend on what else is in the batch, nor on how the vocabulary is
sharded. Masks, edits and penalties change logits [S, vocab] in place, each row by what it asks for alone; edits and
penalties are sums and products, so their logits are float32: a copy of the rows that have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.ops.linear import LinearSpec, linear_inputs
from tessera.ops.mlp import SoftCapSpec
from tessera.ops.tensors import HIDDEN, LARGE_VOCAB, VOCAB
from tessera.platform.ops import SAMPLE_TOKENS, BoundOps, HotCall, Op, Packed, TrialInputs

__all__ = [
    "EditLogitsSpec",
    "Edits",
    "History",
    "LogitsSampleSpec",
    "Logprobs",
    "LogprobsSpec",
    "MaskLogitsSpec",
    "PenaliseSpec",
    "Penalties",
    "SampleSpec",
    "Sampled",
    "SamplingRows",
    "TakeLogitsSpec",
]

_GOLDEN = 0x9E3779B9


# ---- logprobs


class Logprobs(NamedTuple):
    """Log probabilities of one token in each of S rows, and of the k most likely ones: ids [S, 1 + k] int32 and
    logprobs [S, 1 + k] float32, that token first; ranks [S] int32 of that token, 1 for the most likely."""

    ids: Tensor
    logprobs: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class LogprobsSpec:
    """logprobs: how many of the most likely tokens are reported per row."""

    vocab: int
    logprobs: int


def logprobs(spec: LogprobsSpec, logits: Tensor, tokens: Tensor) -> Logprobs:
    """logits [S, V] act or float32; tokens [S] int32 -> Logprobs: ids [S, 1 + L] int32; logprobs [S, 1 + L]
    float32; ranks [S] int32"""
    values = torch.log_softmax(logits.float(), dim=-1)
    own = values.gather(-1, tokens[:, None].long())
    best, ids = values.topk(spec.logprobs, dim=-1)
    return Logprobs(
        torch.cat((tokens[:, None], ids.to(torch.int32)), dim=-1),
        torch.cat((own, best), dim=-1),
        (values > own).sum(-1).to(torch.int32) + 1,
    )


def _logprobs_specs() -> Iterator[LogprobsSpec]:
    for alternatives in (0, 1, 5, 97):
        yield LogprobsSpec(97, alternatives)
    yield LogprobsSpec(LARGE_VOCAB, 2)


def _tokens(spec: LogprobsSpec | SampleSpec) -> Sequence[int]:
    """Wide rows take long to draw; four of them have greedy ones and others."""
    return (4,) if spec.vocab == LARGE_VOCAB else SAMPLE_TOKENS


def _logprobs_inputs(spec: LogprobsSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Some logits are so large that their exponents are out of range, unless the largest is subtracted."""
    logits = make.normal(make.tokens, spec.vocab, scale=2.0)
    logits[1::5] += 100
    return logits, make.integers(0, spec.vocab, make.tokens)


# ---- mask_logits


@dataclass(frozen=True)
class MaskLogitsSpec:
    """In some rows of logits [S, vocab], those of tokens whose bit is 0 become -inf, in place."""

    vocab: int


def mask_logits(spec: MaskLogitsSpec, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """logits [S, V] act or float32; rows [M] int32, of the S; bits [M, ceil(V / 32)] int32, the lowest first: where 0,
    -inf -> nothing

    A row may come twice, with the same bits."""
    entry = torch.arange(spec.vocab, device=logits.device)
    allowed = (bits[:, entry >> 5] >> (entry & 31)) & 1
    place = rows.long()
    logits[place] = logits[place].masked_fill(allowed == 0, -torch.inf)


def _mask_logits_inputs(spec: MaskLogitsSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Half of the rows, in any order; the last of them comes twice."""
    number = -(-make.tokens // 2)
    rows = torch.randperm(make.tokens, generator=make.random)[:number].to(torch.int32)
    words = torch.randint(-(2**31), 2**31, (number, -(-spec.vocab // 32)), generator=make.random).to(torch.int32)
    twice = (torch.cat((part, part[-1:])) for part in (rows, words))
    return make.normal(make.tokens, spec.vocab, dtype=make.dtype), *twice


# ---- take_logits


@dataclass(frozen=True)
class TakeLogitsSpec:
    """A copy of some rows of logits [S, vocab] in float32, for edits and penalties to change."""

    vocab: int


def take_logits(spec: TakeLogitsSpec, logits: Tensor, rows: Tensor) -> Tensor:
    """logits [S, V] act or float32; rows [E] int32, of the S -> [E, V] float32

    A row may come several times. The copy shares no memory with the logits."""
    return logits[rows.long()].float()


def _take_logits_inputs(spec: TakeLogitsSpec, make: TrialInputs) -> tuple[Any, ...]:
    """As many as half of the rows, any of them."""
    rows = make.integers(0, make.tokens, -(-make.tokens // 2))
    return make.normal(make.tokens, spec.vocab, dtype=make.dtype), rows


# ---- edit_logits


class History(NamedTuple):
    """The tokens so far of S rows. tokens [N, M] int32: the first num_tokens[s] entries of row rows[s] of this table
    are known, and the first num_prompt_tokens[s] of these are the prompt. rows, num_prompt_tokens, num_tokens [S]
    int32."""

    tokens: Tensor
    rows: Tensor
    num_prompt_tokens: Tensor
    num_tokens: Tensor


class Edits(NamedTuple):
    """E edits of one logit each, that of token [E] int32 in row [E] int32, one of the S. value [E] float32 is added to
    it; -inf forbids the token. An edit applies while the row has fewer tokens than until [E] int32, and only if the
    answer ends in the tokens of prefix [E, P] int32, which is padded with -1 at the front."""

    row: Tensor
    token: Tensor
    value: Tensor
    until: Tensor
    prefix: Tensor


@dataclass(frozen=True)
class EditLogitsSpec:
    """prefix: P, the length of the prefixes of edits."""

    vocab: int
    prefix: int = 0


def edit_logits(spec: EditLogitsSpec, logits: Tensor, history: History, edits: Edits) -> None:
    """logits [S, V] float32; history History; edits Edits, [E] each, prefix [E, P] -> nothing

    Makes the edits that apply now. A prefix matches only tokens of the answer."""
    row = edits.row.long()
    known = history.num_tokens[row]
    holds = known < edits.until
    if spec.prefix:
        place = known[:, None] - spec.prefix + torch.arange(spec.prefix, device=logits.device)
        answered = place >= history.num_prompt_tokens[row][:, None]
        held = history.tokens[history.rows[row].long()[:, None], place.clamp(min=0).long()]
        holds = holds & ((edits.prefix < 0) | (answered & (held == edits.prefix))).all(-1)
    logits.index_put_((row, edits.token.long()), torch.where(holds, edits.value, 0.0), accumulate=True)


def _edit_logits_inputs(spec: EditLogitsSpec, make: TrialInputs) -> tuple[Any, ...]:
    logits = _partly_forbidden(make.normal(make.tokens, spec.vocab))
    return logits, _history(spec.vocab, make), _edits(spec.vocab, spec.prefix, make)


_SEVERAL = 7  # tokens that histories are made of: the first of the vocabulary and the last
_LONG_HISTORY = 133  # rows, whose histories repeat a token hundreds of times


def _few(tokens: Tensor, vocab: int) -> Tensor:
    """Numbers below _SEVERAL -> tokens."""
    return torch.where(tokens < _SEVERAL // 2, tokens, vocab - _SEVERAL + tokens).to(torch.int32)


def _history(vocab: int, make: TrialInputs) -> History:
    """A table with more rows and columns than are used; tokens repeat often."""
    length, different = (1100, 2) if make.tokens == _LONG_HISTORY else (11, _SEVERAL)
    num_tokens = make.integers(0, length + 1, make.tokens)
    return History(
        tokens=_few(make.integers(0, different, make.tokens + 2, length), vocab),
        rows=torch.randperm(make.tokens + 2, generator=make.random)[: make.tokens].to(torch.int32),
        num_prompt_tokens=(num_tokens * torch.rand(make.tokens, generator=make.random)).to(torch.int32),
        num_tokens=num_tokens,
    )


def _edits(vocab: int, prefix: int, make: TrialInputs) -> Edits:
    """Three per row on average; prefixes are made of tokens that histories have."""
    number = 3 * make.tokens
    value = torch.randn(number, generator=make.random)
    tokens, length = make.integers(0, _SEVERAL, number, prefix), make.integers(0, prefix + 1, number)
    return Edits(
        row=make.integers(0, make.tokens, number),
        token=make.integers(0, vocab, number),
        value=torch.where(torch.arange(number) % 3 == 0, -torch.inf, value),
        until=make.integers(0, 20, number),
        prefix=torch.where(torch.arange(prefix) < prefix - length[:, None], -1, _few(tokens, vocab)),
    )


# ---- penalise


class Penalties(NamedTuple):
    """[S] float32 each. presence is subtracted once from the logits of tokens in the answer, frequency once for each
    time that they occur in it. repetition divides the positive logits of tokens in the prompt or the answer, and
    multiplies the negative ones. 0, 0 and 1 change nothing."""

    presence: Tensor
    frequency: Tensor
    repetition: Tensor


@dataclass(frozen=True)
class PenaliseSpec:
    """Penalties over logits [S, vocab], in place."""

    vocab: int


def penalise(spec: PenaliseSpec, logits: Tensor, history: History, penalties: Penalties) -> None:
    """logits [S, V] float32; history History; penalties Penalties, [S] each -> nothing

    Repetition over prompt and answer (arXiv:1909.05858), then frequency, then presence, both over the answer."""
    held = history.tokens[history.rows.long()].long()
    place = torch.arange(held.shape[-1], device=logits.device)[None, :]
    known = place < history.num_tokens[:, None]
    answered = known & (place >= history.num_prompt_tokens[:, None])
    times = torch.zeros_like(logits).scatter_add_(-1, held, answered.to(logits.dtype))
    seen = torch.zeros_like(logits).scatter_add_(-1, held, known.to(logits.dtype)) > 0
    repetition = torch.where(seen, penalties.repetition[:, None], 1.0)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    less = repeated - penalties.frequency[:, None] * times
    logits.copy_(less - penalties.presence[:, None] * (times > 0))


def _penalise_inputs(spec: PenaliseSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Some tokens are forbidden by a mask or an edit already."""
    penalties = Penalties(make.uniform(-2, 2), make.uniform(-2, 2), make.uniform(0.5, 2))
    return _partly_forbidden(make.normal(make.tokens, spec.vocab)), _history(spec.vocab, make), penalties


def _partly_forbidden(logits: Tensor) -> Tensor:
    logits[:, 1::9] = -torch.inf
    return logits


# ---- sample


class SamplingRows(NamedTuple):
    """The sampling parameters of S rows, [S] each: temperature (0: greedy), top_p and min_p float32, top_k int32 (0:
    off), seed [S, 2] int32, the low and the high 32 bits of a seed, and position int32, the index in its request of the
    token to sample."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


class Sampled(NamedTuple):
    """tokens [S] int32. With logprobs: ids [S, 1 + k] int32 and logprobs [S, 1 + k] float32, the sampled token first,
    and ranks [S] int32 of the sampled token."""

    tokens: Tensor
    ids: Tensor | None = None
    logprobs: Tensor | None = None
    ranks: Tensor | None = None


@dataclass(frozen=True)
class SampleSpec:
    """greedy: every row takes its largest logit. filters: some row has top_k, top_p or min_p. logprobs: how many of the
    most likely tokens are reported per row; -1 for no log probabilities.

    Of a row with temperature 0, the token is the one with the largest logit. Of any other it is the vocabulary entry v
    with the largest `logits[v] / temperature + G(seed, position, v)`, computed in float32, among those that the filters
    leave. Of equal ones, the first counts; where all logits are -inf, that is token 0.

    The filters see the scaled logits without G, in this order. min_p leaves entries whose probability is at least min_p
    times the largest. top_k leaves the k largest, of equal ones the first. top_p below 1 leaves, from the largest to
    the smallest, those before which the probabilities of what is left sum to less than top_p, and always the first.

    G is Gumbel noise from a hash. All values are unsigned words of 32 bits, and sums and products wrap modulo 2^32:

        GOLDEN = 0x9E3779B9
        mix(x):  x = (x ^ (x >> 16)) * 0x21F0AAAD
                 x = (x ^ (x >> 15)) * 0xD35A2D97
                 return x ^ (x >> 15)

        low, high = the low and the high 32 bits of seed (two's complement); place = position
        key   = mix(mix(low ^ GOLDEN) + place)
        other = mix(mix(high + place) ^ key)
        bits  = mix(mix((v * GOLDEN) ^ key) + other) >> 9       23 bits
        u     = (bits + 0.5) * 2^-23                            exact in float32, never 0 or 1
        G     = -log(-log(u))

    v counts over the whole vocabulary, also where a rank has a part of it. For example:

    | seed | position | v | bits | G |
    |---|---|---|---|---|
    | 0 | 0 | 0 | 3210308 | 0.040293 |
    | 0 | 0 | 1 | 3867781 | 0.255933 |
    | 7 | 12 | 1 | 395523 | -1.116590 |
    | 7 | 12 | 151935 | 3230907 | 0.046975 |
    | -1 | 4095 | 151935 | 6751966 | 1.527670 |
    | 9223372036854775807 | 1 | 0 | 470307 | -1.058222 |
    | 123456789012345 | 100000 | 151935 | 5836621 | 1.014117 |"""

    vocab: int
    greedy: bool = False
    filters: bool = False
    logprobs: int = -1


def sample(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    """logits [S, V] act or float32; rows SamplingRows, [S] each -> Sampled: tokens [S] int32; with logprobs ids [S, 1 +
    L] int32, logprobs [S, 1 + L] float32, ranks [S] int32

    Log probabilities are those of the logits as given, before temperature and filters."""
    logits = logits.float()
    tokens = logits.argmax(-1)
    if not spec.greedy:
        greedy = rows.temperature <= 0
        scaled = logits / torch.where(greedy, 1.0, rows.temperature)[:, None]
        if spec.filters:
            scaled = _filtered(scaled, rows)
        noise = -torch.log(-torch.log(uniforms(rows.seed, rows.position, spec.vocab)))
        tokens = torch.where(greedy, tokens, (scaled + noise).argmax(-1))
    drawn = tokens.to(torch.int32)
    if spec.logprobs < 0:
        return Sampled(drawn)
    return Sampled(drawn, *logprobs(LogprobsSpec(spec.vocab, spec.logprobs), logits, drawn))


def _filtered(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The scaled logits, with -inf for tokens that min_p, top_k and top_p exclude, in this order. The most likely token
    is never excluded."""
    probs = torch.softmax(logits, dim=-1)
    logits = logits.masked_fill(probs < rows.min_p[:, None] * probs.amax(-1, keepdim=True), -torch.inf)
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(logits.shape[-1], device=logits.device)[None, :]
    limit = torch.where(rows.top_k > 0, rows.top_k, logits.shape[-1])[:, None]
    ordered = ordered.masked_fill(place >= limit, -torch.inf)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(-1) - probs
    ordered = ordered.masked_fill(
        (before >= rows.top_p[:, None]) & (place > 0) & (rows.top_p[:, None] < 1.0), -torch.inf
    )
    return torch.full_like(logits, -torch.inf).scatter(-1, index, ordered)


def uniforms(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """seed [S, 2], position [S] int32 -> [S, vocab] float32 in (0, 1): 23 random bits, at the middle of their
    interval."""
    low, high = seed.unbind(-1)
    key = _mix(_mix(low ^ _signed(_GOLDEN)) + position)
    other = _mix(_mix(high + position) ^ key)
    entries = torch.arange(vocab, dtype=torch.int32, device=seed.device) * _signed(_GOLDEN)
    bits = _mix(_mix(entries[None, :] ^ key[:, None]) + other[:, None])
    return (_shifted(bits, 9).float() + 0.5) * 2.0**-23


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche: xor-shift and multiply, twice, then xor-shift (constants of C.
    Wellons' hash prospector). Wraps modulo 2^32."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 15)


def _shifted(x: Tensor, by: int) -> Tensor:
    """32-bit words, shifted to the right as unsigned numbers. Not by >>, which some libraries take for a division."""
    return torch.bitwise_right_shift(x, by) & ((1 << (32 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _samples() -> Iterator[SampleSpec]:
    yield SampleSpec(97, greedy=True)
    for filters in (False, True):
        for logprobs in (-1, 0, 3):
            yield SampleSpec(97, filters=filters, logprobs=logprobs)


def _sample_specs() -> Iterator[SampleSpec]:
    yield from _samples()
    yield SampleSpec(LARGE_VOCAB, greedy=True)
    yield SampleSpec(LARGE_VOCAB)
    yield SampleSpec(LARGE_VOCAB, filters=True)


def _sample_inputs(spec: SampleSpec, make: TrialInputs) -> tuple[Any, ...]:
    """In a greedy row, one of the last logits is the largest; one of the first is smaller, but not in 16 bits, or just
    as large. Many logits of some other rows are equal, so that filters cut between equal ones, and some are
    forbidden. Alternatives are reported of different logits alone."""
    logits = make.normal(make.tokens, spec.vocab, scale=2.0)
    if spec.logprobs <= 0:
        logits[1::3] = (2 * logits[1::3]).round() / 2
        logits[5::6] = _partly_forbidden(logits[5::6])
    row = torch.arange(0, make.tokens, 1 if spec.greedy else _GREEDY)
    near = (row % 2 == 0) | (spec.logprobs > 0)
    logits[row, row % 11] = torch.where(near, _PEAK - 2.0**-12, _PEAK)
    logits[row, spec.vocab - 1 - row % 5] = _PEAK
    return logits, _rows(make)


_PEAK = 16.0  # far above the other logits
_GREEDY = 3  # of so many rows the first is greedy


def _rows(make: TrialInputs) -> SamplingRows:
    """Some rows are greedy; each filter is off for some."""
    row = torch.arange(make.tokens)
    return SamplingRows(
        temperature=torch.where(row % _GREEDY == 0, 0.0, make.uniform(0.3, 2.0)),
        top_k=make.integers(0, 9, make.tokens),
        top_p=torch.where(row % 2 == 0, 1.0, make.uniform(0.1, 1.0)),
        min_p=torch.where(row % 4 < 2, 0.0, make.uniform(0.0, 0.3)),
        seed=make.integers(-(2**31), 2**31, make.tokens, 2),
        position=(row + 5).to(torch.int32),
    )


# ---- logits_sample


@dataclass(frozen=True)
class LogitsSampleSpec:
    """Logits from hidden states, by the head, and a token sampled from them."""

    head: LinearSpec  # this rank's rows of the vocabulary
    sample: SampleSpec
    gather: str | None = None  # the group whose ranks have the other rows
    cap: float = 0.0  # soft cap of the logits, 0 for none
    scale: float = 1.0  # multiplies them first


def logits_sample(spec: LogitsSampleSpec, ops: BoundOps) -> HotCall:
    """hidden [S, k] act; weight Packed, [Vr, k]; rows SamplingRows, [S] each -> Sampled"""
    head = ops.bind("linear", spec.head)
    finish = bind_finish(spec, ops)
    draw = ops.bind("sample", spec.sample)
    group = ops.groups[spec.gather] if spec.gather is not None else None

    def call(hidden: Tensor, weight: Packed, rows: SamplingRows) -> Sampled:
        logits = head(hidden, weight)
        if group is not None:
            logits = group.all_gather(logits, -1)
        sampled: Sampled = draw(finish(logits), rows)
        return sampled

    return call


def bind_finish(spec: LogitsSampleSpec, ops: BoundOps) -> HotCall:
    """(logits of all ranks) -> those of the vocabulary, without padding; scaled and soft-capped if the spec says so."""
    vocab = spec.sample.vocab
    if spec.scale == 1.0 and not spec.cap:
        return lambda logits: logits[:, :vocab]
    cap = ops.bind("soft_cap", SoftCapSpec(vocab, spec.head.dtype, spec.cap, spec.scale))
    return lambda logits: cap(logits[:, :vocab])


def _logits_samples() -> Iterator[LogitsSampleSpec]:
    for sample in _samples():
        yield LogitsSampleSpec(LinearSpec(97, 40, "float32"), sample)
    yield LogitsSampleSpec(LinearSpec(97, 40, "float32"), SampleSpec(97, logprobs=3), cap=1.5, scale=0.5)
    yield from _padded(None)


def _padded(gather: str | None) -> Iterator[LogitsSampleSpec]:
    """The last rows of the weight pad the vocabulary: none of them is a token."""
    for sample in (SampleSpec(97, greedy=True), SampleSpec(97, logprobs=3)):
        yield LogitsSampleSpec(LinearSpec(104, 40, "float32"), sample, gather)


def _large_logits_samples() -> Iterator[tuple[LogitsSampleSpec, int]]:
    for sample in (SampleSpec(LARGE_VOCAB, greedy=True), SampleSpec(LARGE_VOCAB, logprobs=2)):
        yield LogitsSampleSpec(LinearSpec(LARGE_VOCAB, 8, "float32"), sample), 4
    for spec in _padded("tensor"):
        yield spec, 133


def _logits_sample_inputs(spec: LogitsSampleSpec, make: TrialInputs) -> tuple[Any, ...]:
    """All logits of some rows are equal, unless alternatives are reported."""
    hidden, weight = linear_inputs(spec.head, make)
    if spec.sample.logprobs <= 0:
        hidden[3::7] = 0
    return hidden, weight, _rows(make)


OPS = (
    Op(
        "logprobs", "sampling", logprobs,
        sample_specs=_logprobs_specs, sample_tokens=_tokens, inputs=_logprobs_inputs,
        served_spec=lambda _: LogprobsSpec(VOCAB, 5),
    ),
    Op(
        "mask_logits", "sampling", mask_logits, mutates=("logits",), batch_invariant=True,
        sample_specs=lambda: (MaskLogitsSpec(vocab) for vocab in (96, 97)),
        large_samples=lambda: iter([(MaskLogitsSpec(LARGE_VOCAB), 4)]), inputs=_mask_logits_inputs,
        served_spec=lambda _: MaskLogitsSpec(VOCAB), any_dtype=True,
    ),
    Op(
        "take_logits", "sampling", take_logits, batch_invariant=True,
        sample_specs=lambda: (TakeLogitsSpec(vocab) for vocab in (96, 97)),
        large_samples=lambda: iter([(TakeLogitsSpec(LARGE_VOCAB), 4)]), inputs=_take_logits_inputs,
        served_spec=lambda _: TakeLogitsSpec(VOCAB), any_dtype=True,
    ),
    Op(
        "edit_logits", "sampling", edit_logits, mutates=("logits",), batch_invariant=True,
        sample_specs=lambda: (EditLogitsSpec(97, prefix) for prefix in (0, 1, 4)),
        large_samples=lambda: iter([(EditLogitsSpec(LARGE_VOCAB, 2), 7)]), inputs=_edit_logits_inputs,
        served_spec=lambda _: EditLogitsSpec(VOCAB, 4),
    ),
    Op(
        "penalise", "sampling", penalise, mutates=("logits",), batch_invariant=True,
        sample_specs=lambda: iter([PenaliseSpec(97)]),
        large_samples=lambda: iter([(PenaliseSpec(LARGE_VOCAB), 7)]), inputs=_penalise_inputs,
        served_spec=lambda _: PenaliseSpec(VOCAB),
    ),
    Op(
        "sample", "sampling", sample,
        sample_specs=_sample_specs, sample_tokens=_tokens, inputs=_sample_inputs,
        served_spec=lambda _: SampleSpec(VOCAB, greedy=True),
    ),
    Op(
        "logits_sample", "sampling", compose=logits_sample, parts=("linear", "soft_cap", "sample"),
        sample_specs=_logits_samples, large_samples=_large_logits_samples, inputs=_logits_sample_inputs,
        served_spec=lambda dtype: LogitsSampleSpec(LinearSpec(VOCAB, HIDDEN, dtype), SampleSpec(VOCAB, greedy=True)),
    ),
)  # fmt: skip
