"""Mistakes in drawing tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tessera.ops import sampling
from tessera.platform import LogprobsSpec, MaskLogitsSpec, Sampled, SampleSpec, SamplingRows
from tests.platforms.faulty.making import Base, with_ops


def one_seed_for_all(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    return sampling.sample(spec, logits, rows._replace(seed=rows.seed[:1].expand(len(rows.seed))))


def top_k_one_too_few(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    return sampling.sample(spec, logits, rows._replace(top_k=torch.where(rows.top_k > 1, rows.top_k - 1, rows.top_k)))


def top_p_one_too_few(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    """The token that reaches top_p is left out, unless it is the only one."""
    scaled = logits.float() / torch.where(rows.temperature <= 0, 1.0, rows.temperature)[:, None]
    kept = sampling._filtered(scaled, rows)
    last = kept.masked_fill(kept.isinf(), torch.inf).argmin(-1, keepdim=True)
    several = (~kept.isinf()).sum(-1, keepdim=True) > 1
    drop = torch.zeros_like(kept, dtype=torch.bool).scatter(-1, last, True)
    fewer = logits.masked_fill(drop & several & (rows.top_p < 1.0)[:, None], -torch.inf)
    tokens = sampling.sample(SampleSpec(spec.vocab, spec.greedy, spec.filters), fewer, rows).tokens
    if spec.logprobs < 0:
        return Sampled(tokens)
    return Sampled(tokens, *sampling.logprobs(LogprobsSpec(spec.vocab, spec.logprobs), logits.float(), tokens))


def greedy_in_few_bits(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    return sampling.sample(spec, logits.bfloat16() if spec.greedy else logits, rows)


def ids_of_16_bits(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    found = sampling.sample(spec, logits, rows)
    return found._replace(tokens=found.tokens & 0xFFFF)


def tables_of_64_rows(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    """A row finds what it asks for at its number's last six bits."""
    row = torch.arange(len(logits), device=logits.device) % 64
    return sampling.sample(spec, logits, SamplingRows(*(column[row] for column in rows)))


def mask_of_another_row(spec: MaskLogitsSpec, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    sampling.mask_logits(spec, logits, rows, bits.roll(1, 0))


def _late(known: dict[torch.Size, Tensor]) -> Callable[[MaskLogitsSpec, Tensor, Tensor, Tensor], None]:
    """known: the bits that came before, by their shape, as in a buffer that is copied too late."""

    def mask_one_step_late(spec: MaskLogitsSpec, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        sampling.mask_logits(spec, logits, rows, known.get(bits.shape, bits))
        known[bits.shape] = bits

    return mask_one_step_late


def MaskOneStepLate(base: Base) -> Base:  # named as the class that it makes
    return with_ops(mask_logits=_late({}))(base)


GreedyInFewBits = with_ops(sample=greedy_in_few_bits)
IdsOf16Bits = with_ops(sample=ids_of_16_bits)
MaskOfAnotherRow = with_ops(mask_logits=mask_of_another_row)
TablesOf64Rows = with_ops(sample=tables_of_64_rows)
EditsAsTheyAre = with_ops(edit_logits=sampling.edit_logits)
"""Without a mistake."""
OneSeedForAll = with_ops(sample=one_seed_for_all)
TopKOneTooFew = with_ops(sample=top_k_one_too_few)
TopPOneTooFew = with_ops(sample=top_p_one_too_few)
