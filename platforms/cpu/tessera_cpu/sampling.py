"""Sampling, what changes logits before it, and log probabilities, with the native kernels. They read bfloat16 or
float32 logits in place and never sort the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    BoundOps,
    Device,
    EditLogitsSpec,
    Edits,
    History,
    Kernel,
    Logprobs,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    Sampled,
    SampleSpec,
    SamplingRows,
    TakeLogitsSpec,
)
from tessera_cpu import native
from tessera_cpu.products import rows_apart

_ENTRIES = {torch.bfloat16: native.BF16_ENTRY, torch.float32: native.FLOAT_ENTRY}


class Sample(Kernel[SampleSpec]):
    def supports(self, spec: SampleSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: SampleSpec) -> None:
        return None

    def bind(self, spec: SampleSpec, ops: BoundOps, device: Device) -> Any:
        draw = native.library().tessera_cpu_sample
        of_tokens = None if spec.logprobs < 0 else ops.bind("logprobs", LogprobsSpec(spec.vocab, spec.logprobs))

        def sample(logits: Tensor, rows: SamplingRows) -> Sampled:
            logits, entry = _as_it_lies(logits)
            tokens = torch.empty(len(logits), dtype=torch.int32)
            place = logits.data_ptr(), logits.stride(0), *logits.shape
            task = native.Sampling(*place, tokens=tokens.data_ptr(), entry=entry)
            asked = SamplingRows(*(column.contiguous() for column in rows))
            if not spec.greedy:
                task.temperature, task.seed, task.position = (
                    column.data_ptr() for column in (asked.temperature, asked.seed, asked.position)
                )
            if spec.filters and not spec.greedy:
                task.top_k, task.top_p, task.min_p = (
                    column.data_ptr() for column in (asked.top_k, asked.top_p, asked.min_p)
                )
            draw(task)
            return Sampled(tokens) if of_tokens is None else Sampled(tokens, *of_tokens(logits, tokens))

        return sample


class MaskLogits(Kernel[MaskLogitsSpec]):
    def supports(self, spec: MaskLogitsSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: MaskLogitsSpec) -> None:
        return None

    def bind(self, spec: MaskLogitsSpec, ops: BoundOps, device: Device) -> Any:
        mask = native.library().tessera_cpu_mask

        def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
            (lying, entry), rows, bits = _as_it_lies(logits), rows.contiguous(), bits.contiguous()
            place = lying.data_ptr(), lying.stride(0), spec.vocab
            mask(native.Masking(*place, rows.data_ptr(), bits.data_ptr(), len(rows), entry))
            if lying is not logits:
                logits.copy_(lying)

        return mask_logits


class TakeLogits(Kernel[TakeLogitsSpec]):
    def supports(self, spec: TakeLogitsSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: TakeLogitsSpec) -> None:
        return None

    def bind(self, spec: TakeLogitsSpec, ops: BoundOps, device: Device) -> Any:
        take = native.library().tessera_cpu_take

        def take_logits(logits: Tensor, rows: Tensor) -> Tensor:
            (logits, entry), rows = _as_it_lies(logits), rows.contiguous()
            out = torch.empty(len(rows), spec.vocab)
            place = logits.data_ptr(), logits.stride(0), spec.vocab
            take(native.Taking(*place, rows.data_ptr(), out.data_ptr(), len(rows), entry))
            return out

        return take_logits


class EditLogits(Kernel[EditLogitsSpec]):
    def supports(self, spec: EditLogitsSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: EditLogitsSpec) -> None:
        return None

    def bind(self, spec: EditLogitsSpec, ops: BoundOps, device: Device) -> Any:
        edit = native.library().tessera_cpu_edit

        def edit_logits(logits: Tensor, history: History, edits: Edits) -> None:
            lying, known = rows_apart(logits), _whole(history)
            held = [column.contiguous() for column in edits]
            columns = (column.data_ptr() for column in held)
            place = lying.data_ptr(), lying.stride(0), _native_history(known)
            edit(native.Editing(*place, *columns, len(edits.row), spec.prefix))
            if lying is not logits:
                logits.copy_(lying)

        return edit_logits


class Penalise(Kernel[PenaliseSpec]):
    def supports(self, spec: PenaliseSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: PenaliseSpec) -> None:
        return None

    def bind(self, spec: PenaliseSpec, ops: BoundOps, device: Device) -> Any:
        apply = native.library().tessera_cpu_penalise

        def penalise(logits: Tensor, history: History, penalties: Penalties) -> None:
            lying, known = rows_apart(logits), _whole(history)
            held = [column.contiguous() for column in penalties]
            columns = (column.data_ptr() for column in held)
            place = lying.data_ptr(), lying.stride(0), len(lying), spec.vocab
            apply(native.Penalising(*place, _native_history(known), *columns))
            if lying is not logits:
                logits.copy_(lying)

        return penalise


class TokenLogprobs(Kernel[LogprobsSpec]):
    def supports(self, spec: LogprobsSpec) -> str | None:
        return "no native kernel" if native.library() is None else None

    def batch_invariant(self, spec: LogprobsSpec) -> None:
        return None

    def bind(self, spec: LogprobsSpec, ops: BoundOps, device: Device) -> Any:
        look = native.library().tessera_cpu_logprobs

        def logprobs(logits: Tensor, tokens: Tensor) -> Logprobs:
            logits, entry = _as_it_lies(logits)
            tokens, rows = tokens.contiguous(), len(logits)
            found = Logprobs(
                torch.empty(rows, 1 + spec.logprobs, dtype=torch.int32),
                torch.empty(rows, 1 + spec.logprobs),
                torch.empty(rows, dtype=torch.int32),
            )
            results = (part.data_ptr() for part in found)
            place = logits.data_ptr(), logits.stride(0), *logits.shape
            look(native.Logprobs(*place, tokens.data_ptr(), spec.logprobs, *results, entry))
            return found

        return logprobs


def _as_it_lies(logits: Tensor) -> tuple[Tensor, int]:
    """Logits in a form that the kernels can read, and their dtype as enum Entry of csrc/draws.h."""
    if logits.dtype not in _ENTRIES:
        logits = logits.float()
    return rows_apart(logits), _ENTRIES[logits.dtype]


def _whole(history: History) -> History:
    """The same tokens in a form that the kernels can read."""
    return History(rows_apart(history.tokens), *(column.contiguous() for column in history[1:]))


def _native_history(history: History) -> native.History:
    """history: of _whole(), which has to live as long as this."""
    tokens, *columns = history
    return native.History(tokens.data_ptr(), tokens.stride(0), *(column.data_ptr() for column in columns))
