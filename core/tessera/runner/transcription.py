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
from tessera.config.pooler import ALIGNED
from tessera.config.speech import SpeechConfig
from tessera.features.transcription import FREE, RULES, TIMED, UNTIMED
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
        return (Column(RULES, "int32", default=FREE), Column(ALIGNED, "int32", internal=True))

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        speech, target = self._speech, ops.device.target
        # [states, vocabulary] bfloat16: what is added to a row's logits in each of the states that _state() numbers, 0
        # or, for what is not written then, minus infinity. Whole tables, since one sum is cheaper than many masks.
        self._added = arena.hold(_added(speech, self._vocab_size).to(target))
        # [times]: the steps of each.
        self._steps = arena.hold(torch.arange(self._vocab_size - speech.first_time).to(target))
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
        rules, rows = launch.columns[RULES], launch.rows.long()
        place, time, timed = self._place[rows], self._time[rows], rules == TIMED
        logits = logits + self._added[_state(rules, place)].to(logits.dtype)
        texts, times = logits[:, : self._speech.first_time], logits[:, self._speech.first_time :]
        # A pair of times ends one text and begins the next, so the second may equal the first.
        least = torch.where(timed, torch.where(place == TIME, time, time + 1), 0)
        times.masked_fill_(self._steps < least[:, None], -torch.inf)
        timely = timed & (times.float().logsumexp(-1) > texts.amax(-1).float())
        texts += torch.where(timely, -torch.inf, 0.0).to(logits.dtype)[:, None]
        return logits

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


def _state(rules: Tensor, place: Tensor) -> Tensor:
    """[R] each -> [R] int64: 0 for FREE, 1 and 2 for UNTIMED, if the answer has a beginning or has none, and from 3 on
    the places of TIMED."""
    untimed = torch.where(place == BEGIN, 2, 1)
    return torch.where(rules == TIMED, 3 + place, torch.where(rules == UNTIMED, untimed, 0)).long()


def _added(speech: SpeechConfig, vocab_size: int) -> Tensor:
    """[states, vocab_size]: what an answer's place rules out, whatever its last time is."""
    tokens = torch.arange(vocab_size)
    is_time = tokens >= speech.first_time
    never = torch.isin(tokens, torch.tensor([*speech.suppressed, speech.mark]))
    never_first = never | torch.isin(tokens, torch.tensor([*speech.suppressed_first]))
    begin = never_first | ~is_time
    if speech.most_first_time is not None:
        begin |= tokens > speech.first_time + speech.most_first_time
    timed = {BEGIN: begin, TEXT: never, TIME: never | (tokens < speech.end), PAIR: never | is_time}
    banned = torch.stack([torch.zeros_like(never), never, never_first, *(timed[place] for place in sorted(timed))])
    return torch.zeros(banned.shape, dtype=torch.bfloat16).masked_fill_(banned, -torch.inf)
