"""A model's log probabilities of every next token of texts, and how those of two models differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tessera.arrays import Array, int32
from tessera.config import EngineConfig
from tessera.engine.engine import Engine
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.text.scored_texts import ScoredText


@dataclass(frozen=True)
class Scores:
    """A model's predictions for texts."""

    # For each text, the log probabilities [tokens - 1, vocabulary] of its second and later tokens, float32.
    distributions: list[Array]
    # Of memory for each weight.
    bits: float


@dataclass(frozen=True)
class Loss:
    """What a model's predictions lose beside another's."""

    # Of the counted tokens.
    perplexity: float
    # KL divergence of the next token's distribution from the other model's, in nats for each token.
    divergence: float
    # The fraction of tokens for which both models have the same most likely one.
    agreement: float


def scores_of(config: EngineConfig, texts: Sequence[ScoredText], folder: Path | None = None) -> Scores:
    """config: must have `embedded` set. folder: where distributions are kept, as files, since a text's take 4 bytes for
    each token and word of the vocabulary; None for memory."""
    engine = Engine(config)
    try:
        found = (_distributions(engine, config.model.vocab_size, key, text) for key, text in enumerate(texts))
        distributions = [
            one if folder is None else _stored(one, folder / f"{key}.npy") for key, one in enumerate(found)
        ]
        return Scores(distributions, 8 * engine.info.weight_bytes / engine.info.num_weights)
    finally:
        engine.close()


def _stored(distributions: Array, path: Path) -> Array:
    """The same, in a file."""
    np.save(path, distributions)
    stored: Array = np.load(path, mmap_mode="r")
    return stored


def _distributions(engine: Engine, vocabulary: int, key: int, text: ScoredText) -> Array:
    """The log probabilities of one text, which is run alone because they need much memory."""
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=vocabulary)
    engine.add(Request(key, str(key), int32(text.ids), asked, 1, seed=0))
    found: list[Array] = []
    while engine.has_work:
        outputs = engine.step()
        for one in () if outputs is None else outputs.prompt_logprobs:
            found.append(_by_token(one.prompt_logprobs.ids, one.prompt_logprobs.logprobs))
    return np.concatenate(found)


def _by_token(ids: Array, logprobs: Array) -> Array:
    """Reorders [tokens, 1 + V], sorted by likelihood after the token itself, to [tokens, V] by token id."""
    placed = np.empty((len(ids), ids.shape[1] - 1), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), logprobs[:, 1:], axis=1)
    return placed


def loss(texts: Sequence[ScoredText], plain: Scores, other: Scores) -> Loss:
    """What other loses beside plain."""
    said, divergence, agreed = (np.concatenate(list(one)) for one in zip(*_by_text(texts, plain, other), strict=True))
    return Loss(float(np.exp(-said.mean())), float(divergence.mean()), float(agreed.mean()))


def _by_text(texts: Sequence[ScoredText], plain: Scores, other: Scores) -> Iterator[tuple[Array, Array, Array]]:
    """For each counted token: its log probability, the divergence, and whether the most likely token is the same."""
    for text, before, after in zip(texts, plain.distributions, other.distributions, strict=True):
        counted = np.array(text.counted[1:])
        p, q, said = before[counted].astype(np.float64), after[counted], np.array(text.ids[1:])[counted, None]
        yield (
            np.take_along_axis(q, said, axis=1)[:, 0],
            (np.exp(p) * (p - q)).sum(-1),
            p.argmax(-1) == q.argmax(-1),
        )
