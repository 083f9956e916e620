"""The rules for the answers of models that write down speech (arXiv:2212.04356, section 4.5, as openai-whisper has
them): tokens that are never written, and times in pairs that never go back.

A text stands between two times, and only the end of the answer may follow one that stands alone. Where the times
together are likelier than any text, a time is next.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.features.transcription import FREE, RULES, TIMED
from tessera.platform.device import Arena
from tessera.platform.feature import Column, WorkerFeature
from tessera.platform.launch import Launch
from tessera.platform.model import Product
from tessera.platform.ops import BoundOps
from tessera.step import RowOpened

BEGIN, TEXT, TIME, PAIR = range(4)
"""What an answer ends with: nothing yet; a text; one time behind a text; two times, or the one that it begins with."""


class TranscriptionInWorker(WorkerFeature):
    """Follows each row's answer on the device, so that no step waits for the one before."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        assert config.model.speech is not None, "checked in the engine"
        self._speech, self._vocab_size = config.model.speech, config.model.vocab_size
        self._num_rows = config.scheduler.max_num_seqs + 1

    def columns(self) -> Sequence[Column]:
        return (Column(RULES, "int32", default=FREE),)

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        speech, target = self._speech, ops.device.target
        tokens = torch.arange(self._vocab_size)
        self._tokens = arena.hold(tokens.to(target))
        # [vocabulary] bool: of tokens, whether they are never written, and never written first.
        never = torch.isin(tokens, torch.tensor([*speech.suppressed, speech.no_timestamps]))
        self._never = arena.hold(never.to(target))
        self._never_first = arena.hold(torch.isin(tokens, torch.tensor([*speech.suppressed_first])).to(target))
        rows = (self._num_rows,)
        # By row: what the answer ends with.
        self._place = arena.hold(torch.zeros(rows, dtype=torch.int32, device=target))
        # By row: its last time, in steps; -1 if it has none.
        self._time = arena.hold(torch.full(rows, -1, dtype=torch.int32, device=target))
        # By row: how many tokens its prompt and the answer had when it was opened. Before these are computed, what is
        # sampled is no token of the answer.
        self._opened = arena.hold(torch.zeros(rows, dtype=torch.int32, device=target))

    def open(self, opened: Sequence[RowOpened]) -> bool:
        rows, places, times, lengths = [], [], [], []
        for one in opened:
            place, time = BEGIN, -1
            for token in one.tokens[one.num_prompt_tokens :].tolist():
                place, time = self._followed(place, time, token)
            rows.append(one.row)
            places.append(place)
            times.append(time)
            lengths.append(len(one.tokens))
        target = self._place.device
        index = torch.tensor(rows, device=target)
        for kept, values in ((self._place, places), (self._time, times), (self._opened, lengths)):
            kept[index] = torch.tensor(values, dtype=torch.int32, device=target)
        return False

    def logits(self, launch: Launch, logits: Tensor) -> Tensor:
        rules, rows = launch.columns[RULES][:, None], launch.rows.long()
        place, time = self._place[rows][:, None], self._time[rows][:, None]
        first = self._speech.first_time
        begins, is_time = place == BEGIN, self._tokens >= first
        steps = self._tokens - first
        banned = self._never | (begins & self._never_first)
        # A pair of times ends one text and begins the next, so the second may equal the first.
        too_early = is_time & (steps < torch.where(place == TIME, time, time + 1))
        untimely = too_early | (is_time & (place == PAIR))
        untimely |= (place == TIME) & (self._tokens < self._speech.end)
        untimely |= begins & ~is_time
        if self._speech.most_first_time is not None:
            untimely |= begins & (steps > self._speech.most_first_time)
        logits = logits.masked_fill((rules != FREE) & (banned | ((rules == TIMED) & untimely)), -torch.inf)
        scores = logits.float()
        timely = scores[:, first:].logsumexp(-1) > scores[:, :first].amax(-1)
        return logits.masked_fill((rules == TIMED) & timely[:, None] & ~is_time, -torch.inf)

    def after(self, launch: Launch, sampled: Tensor) -> None:
        rows = launch.rows.long()
        place, time = self._place[rows], self._time[rows]
        is_time = sampled >= self._speech.first_time
        following = torch.where(is_time, torch.where(place == TEXT, TIME, PAIR), TEXT).to(torch.int32)
        last = torch.where(is_time, sampled.to(torch.int32) - self._speech.first_time, time)
        own = launch.seq_lens >= self._opened[rows]
        self._place[rows] = torch.where(own, following, place)
        self._time[rows] = torch.where(own, last, time)

    def _followed(self, place: int, time: int, token: int) -> tuple[int, int]:
        """As after(), of one token."""
        if token < self._speech.first_time:
            return TEXT, time
        return (TIME if place == TEXT else PAIR), token - self._speech.first_time
