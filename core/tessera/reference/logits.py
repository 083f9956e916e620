"""Group sampling: what rows ask for before a token is drawn. Float32 logits [S, vocab] are changed in place, each row
by what it asks for alone."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.platform.ops import EditLogitsSpec, Edits, History, MaskLogitsSpec, PenaliseSpec, Penalties


def mask_logits(spec: MaskLogitsSpec, logits: Tensor, bits: Tensor) -> None:
    """bits [S, ceil(vocab / 32)] int32, the lowest bit first: entries whose bit is 0 become -inf."""
    entry = torch.arange(spec.vocab, device=logits.device)
    allowed = (bits[:, entry >> 5] >> (entry & 31)) & 1
    logits.masked_fill_(allowed == 0, -torch.inf)


def edit_logits(spec: EditLogitsSpec, logits: Tensor, history: History, edits: Edits) -> None:
    """Adds to single entries what holds now. A prefix holds only within the answer."""
    row = edits.row.long()
    known = history.num_tokens[row]
    holds = known < edits.until
    if spec.prefix:
        place = known[:, None] - spec.prefix + torch.arange(spec.prefix, device=logits.device)
        answered = place >= history.num_prompt_tokens[row][:, None]
        held = history.tokens[history.rows[row].long()[:, None], place.clamp(min=0).long()]
        holds = holds & ((edits.prefix < 0) | (answered & (held == edits.prefix))).all(-1)
    logits.index_put_((row, edits.token.long()), torch.where(holds, edits.value, 0.0), accumulate=True)


def penalise(spec: PenaliseSpec, logits: Tensor, history: History, penalties: Penalties) -> None:
    """Repetition over prompt and answer (arXiv:1909.05858), then frequency, then presence, both over the answer."""
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
