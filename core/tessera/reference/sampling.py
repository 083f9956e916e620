"""Group sampling: from logits to tokens, by rows, with randomness that depends on seed and position alone.

A draw is the argmax of scaled logits plus Gumbel noise, which samples from their softmax; the noise of vocabulary entry
v is a hash of (seed, position, v), so it does not depend on what else is in the batch, nor on how the vocabulary is
sharded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.platform.ops import (
    BoundOps,
    HotCall,
    LogitsSampleSpec,
    Logprobs,
    LogprobsSpec,
    Packed,
    Sampled,
    SampleSpec,
    SamplingRows,
    SoftCapSpec,
)

_GOLDEN = 0x9E3779B9


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche: xor-shift and multiply, three times (constants of C. Wellons'
    hash prospector). Wraps modulo 2^32."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        x = (x ^ ((x >> shift) & ((1 << (32 - shift)) - 1))) * _signed(factor)
    return x ^ ((x >> 15) & 0x1FFFF)


def _words(x: Tensor) -> tuple[Tensor, Tensor]:
    """int64 -> its low and high 32 bits as int32."""
    low = x & 0xFFFFFFFF
    return (low - ((low >> 31) << 32)).to(torch.int32), (x >> 32).to(torch.int32)


def uniforms(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """seed, position [S] int64 -> [S, vocab] float32 in (0, 1): 23 random bits at the middle of their interval."""
    (seed_low, seed_high), (place, _) = _words(seed), _words(position)
    key = _mix(_mix(seed_low ^ _signed(_GOLDEN)) + place)
    other = _mix(_mix(seed_high + place) ^ key)
    entries = torch.arange(vocab, dtype=torch.int32, device=seed.device) * _signed(_GOLDEN)
    bits = _mix(_mix(entries[None, :] ^ key[:, None]) + other[:, None])
    return (((bits >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23


def _filtered(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Scaled logits with what min_p, top_k and top_p exclude at -inf, in this order. The most likely entry always
    stays."""
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


def sample(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    """logits [S, vocab] of any float dtype -> the drawn tokens; log probabilities are of the logits as they came."""
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


def logprobs(spec: LogprobsSpec, logits: Tensor, tokens: Tensor) -> Logprobs:
    """logits [S, vocab] of any float dtype, tokens [S] int32 -> of these tokens and of the most likely ones."""
    values = torch.log_softmax(logits.float(), dim=-1)
    own = values.gather(-1, tokens[:, None].long())
    best, ids = values.topk(spec.logprobs, dim=-1)
    return Logprobs(
        torch.cat((tokens[:, None], ids.to(torch.int32)), dim=-1),
        torch.cat((own, best), dim=-1),
        (values > own).sum(-1).to(torch.int32) + 1,
    )


def logits_sample(spec: LogitsSampleSpec, ops: BoundOps) -> HotCall:
    """(hidden [S, k], head, rows) -> Sampled: linear, gather, cap, sample."""
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
    """(logits of all ranks) -> the vocabulary's own entries, scaled and soft-capped where the spec says so."""
    vocab = spec.sample.vocab
    if spec.scale == 1.0 and not spec.cap:
        return lambda logits: logits[:, :vocab]
    cap = ops.bind("soft_cap", SoftCapSpec(vocab, spec.head.dtype, spec.cap, spec.scale))
    return lambda logits: cap(logits[:, :vocab])
