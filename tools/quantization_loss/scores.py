"""A model's log probabilities of every next token of texts, and how those of two models differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array, int32
from tessera.config import EngineConfig
from tessera.engine.engine import Engine
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tools.quantization_loss.texts import Text


@dataclass(frozen=True)
class Scores:
    """distributions: for each text, the log probabilities [tokens - 1, vocabulary] of its second and later tokens;
    bits: of memory per weight."""

    distributions: list[Array]
    bits: float


@dataclass(frozen=True)
class Loss:
    """perplexity: of the counted tokens. divergence: KL divergence from the unquantized model, in nats per token.
    agreement: the fraction of tokens for which both models have the same most likely one."""

    perplexity: float
    divergence: float
    agreement: float


def scores_of(config: EngineConfig, texts: Sequence[Text]) -> Scores:
    """config: must have `embedded` set."""
    engine = Engine(config)
    try:
        distributions = [_distributions(engine, config.model.vocab_size, key, text) for key, text in enumerate(texts)]
        return Scores(distributions, 8 * engine.info.weight_bytes / engine.info.num_weights)
    finally:
        engine.close()


def _distributions(engine: Engine, vocabulary: int, key: int, text: Text) -> Array:
    """The log probabilities of one text, which is run alone because they need much memory."""
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=vocabulary)
    engine.add(Request(key, str(key), int32(text.ids), asked, 1, seed=0))
    found: list[Array] = []
    while engine.has_work:
        outputs = engine.step()
        for of in () if outputs is None else outputs.prompt_logprobs:
            found.append(_by_token(of.prompt_logprobs.ids, of.prompt_logprobs.logprobs))
    return np.concatenate(found)


def _by_token(ids: Array, logprobs: Array) -> Array:
    """Reorders [tokens, 1 + V], sorted by likelihood after the token itself, to [tokens, V] by token id."""
    placed = np.empty((len(ids), ids.shape[1] - 1), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), logprobs[:, 1:], axis=1)
    return placed


def loss(texts: Sequence[Text], plain: Scores, other: Scores) -> Loss:
    said, divergence, agreed = (np.concatenate(list(one)) for one in zip(*_by_text(texts, plain, other), strict=True))
    return Loss(float(np.exp(-said.mean())), float(divergence.mean()), float(agreed.mean()))


def _by_text(texts: Sequence[Text], plain: Scores, other: Scores) -> Iterator[tuple[Array, Array, Array]]:
    """For each counted token: its log probability, the divergence, and whether the most likely token is the same."""
    for text, before, after in zip(texts, plain.distributions, other.distributions, strict=True):
        counted = np.array(text.counted[1:])
        p, q, said = before[counted].astype(np.float64), after[counted], np.array(text.ids[1:])[counted, None]
        yield (
            np.take_along_axis(q, said, axis=1)[:, 0],
            (np.exp(p) * (p - q)).sum(-1),
            p.argmax(-1) == q.argmax(-1),
        )
