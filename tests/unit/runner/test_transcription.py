"""The rules for answers that write down speech, against transformers' processors of logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from tessera.config.speech import SpeechConfig
from tessera.features.transcription import FREE, RULES, TIMED, UNTIMED
from tessera.runner.transcription import TranscriptionInWorker

VOCAB, START, END, NO_TIMES = 64, 41, 40, 43
SPEECH = SpeechConfig(
    start=START, end=END, no_timestamps=NO_TIMES, suppressed=(3, 7), suppressed_first=(9, END), most_first_time=5
)
PROMPT = [START, NO_TIMES]


def rules(num_rows: int) -> TranscriptionInWorker:
    model, scheduler = SimpleNamespace(speech=SPEECH, vocab_size=VOCAB), SimpleNamespace(max_num_seqs=num_rows)
    feature = TranscriptionInWorker(SimpleNamespace(model=model, scheduler=scheduler), "")  # type: ignore[arg-type]
    device = SimpleNamespace(target=torch.device("cpu"))
    arena: Any = SimpleNamespace(hold=lambda tensor: tensor)
    feature.attach((), SimpleNamespace(device=device), arena)  # type: ignore[arg-type]
    return feature


def opened(row: int, tokens: list[int]) -> Any:
    return SimpleNamespace(row=row, tokens=np.array(tokens, np.int32), num_prompt_tokens=len(PROMPT))


def launch(rows: list[int], asked: list[int], lengths: list[int]) -> Any:
    columns = {RULES: torch.tensor(asked, dtype=torch.int32)}
    values = (torch.tensor(values, dtype=torch.int32) for values in (rows, lengths))
    return SimpleNamespace(columns=columns, **dict(zip(("rows", "seq_lens"), values, strict=True)))


def theirs(tokens: list[int], logits: torch.Tensor, *, timed: bool) -> torch.Tensor:
    config = GenerationConfig(
        eos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=SPEECH.most_first_time
    )
    config._detect_timestamp_from_logprob = True
    processors: list[Any] = [
        SuppressTokensLogitsProcessor([*SPEECH.suppressed, NO_TIMES]),
        SuppressTokensAtBeginLogitsProcessor(list(SPEECH.suppressed_first), begin_index=len(PROMPT)),
    ]
    if timed:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)))
    ids, scores = torch.tensor([tokens]), logits[None].clone()
    for process in processors:
        scores = process(ids, scores)
    return scores[0]


def test_answers_follow_the_rules_that_transformers_has() -> None:
    draws = torch.Generator().manual_seed(1)
    kinds, feature = [TIMED, TIMED, UNTIMED, TIMED], rules(5)
    rows, texts = [4, 0, 2, 1], [list(PROMPT) for _ in kinds]
    feature.open([opened(row, text) for row, text in zip(rows, texts, strict=True)])
    for turn in range(60):
        if turn == 30:  # as after a preemption, in other rows
            rows = [0, 1, 3, 2]
            feature.open([opened(row, text) for row, text in zip(rows, texts, strict=True)])
        now = launch(rows, kinds, [len(text) for text in texts])
        logits = torch.randn(len(rows), VOCAB, generator=draws) * 2
        got = feature.logits(now, logits.clone())
        for text, one, own, kind in zip(texts, logits, got, kinds, strict=True):
            assert torch.equal(own, theirs(text, one, timed=kind == TIMED))
        sampled = torch.multinomial(got.softmax(-1), 1, generator=draws)[:, 0]
        if turn % 7 == 3:  # as a chunk of a prompt samples, whose token is dropped
            feature.after(launch(rows, kinds, [1] * len(rows)), sampled)
            continue
        feature.after(now, sampled.to(torch.int32))
        for text, token in zip(texts, sampled.tolist(), strict=True):
            text.append(token)
    times = [sum(token > NO_TIMES for token in text) for text in texts]
    assert min(times[0], times[1], times[3]) >= 4


def test_rows_that_ask_for_nothing_are_left_alone() -> None:
    feature = rules(2)
    feature.open([opened(0, PROMPT)])
    logits = torch.randn(1, VOCAB)
    assert torch.equal(feature.logits(launch([0], [FREE], [2]), logits), logits)
