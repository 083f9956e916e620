"""A question of the Decisions API as the model is shown it, and its answer from the probabilities of the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tessera.errors import RequestError
from tessera.request import Logprob
from tessera.server.decisions.labelled import LabelledText
from tessera.server.decisions.labels import Labels
from tessera.server.decisions.protocol import (
    MAX_CHOICES,
    MAX_LEVELS,
    MAX_NAME_CHARS,
    Answer,
    Choice,
    ChoiceAnswer,
    ChoiceProbability,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    RefusalAnswer,
    Score,
    ScoreAnswer,
    ScoreProbability,
)

LEAST_MASS = 0.01
"""If the model gives all labels together less than this probability, it would say something else: a refusal."""


@dataclass(frozen=True)
class LabelledQuestion:
    """A question, and what the model is shown of it."""

    question: Question
    labelled: LabelledText

    @classmethod
    def build(cls, question: Question, place: str, vocabulary_labels: Labels) -> LabelledQuestion:
        """place: in the request. vocabulary_labels: is loaded. Raises RequestError."""
        if question.name is not None and len(question.name) > MAX_NAME_CHARS:
            raise RequestError(f"{place}.name has at most {MAX_NAME_CHARS} characters.", param=f"{place}.name")
        instructions = _text(question.instructions, f"{place}.instructions")
        match question:
            case Predicate():
                shown, labels = f"Is the following true?\n{instructions}", vocabulary_labels.matching(("Yes", "No"))
                if labels:
                    return cls(question, LabelledText(f"{shown}\n\nAnswer with Yes or No only.", labels))
                labels = vocabulary_labels.distinct(2, place)
                return cls(question, LabelledText.listing(shown, labels, [("Yes", None), ("No", None)]))
            case Choice(choices=choices):
                _check_choices(choices, f"{place}.choices")
                labels = vocabulary_labels.distinct(len(choices), f"{place}.choices")
                entries = [(_written(option.value), option.description) for option in choices]
                return cls(question, LabelledText.listing(instructions, labels, entries))
            case Score(levels=levels):
                _check_count(levels, MAX_LEVELS, f"{place}.levels")
                labels = vocabulary_labels.numbered(len(levels), f"{place}.levels")
                entries = [(level.label, level.description) for level in levels]
                return cls(question, LabelledText.listing(instructions, labels, entries))

    def answer(self, position: Mapping[int, Logprob]) -> Answer:
        """position: the log probabilities of the labels' tokens where the answer begins."""
        read, name = self.labelled.shares(position), self.question.name
        if read.mass < LEAST_MASS:
            return RefusalAnswer(name=name, label_mass=read.mass)
        match self.question:
            case Predicate():
                return PredicateAnswer(name=name, probability=read.shares[0], label_mass=read.mass)
            case Choice(choices=choices):
                return ChoiceAnswer(
                    name=name,
                    choice=choices[read.best].value,
                    confidence=read.above_equal,
                    probabilities=[
                        ChoiceProbability(option.value, share)
                        for option, share in zip(choices, read.shares, strict=True)
                    ],
                    label_mass=read.mass,
                )
            case Score(levels=levels):
                return ScoreAnswer(
                    name=name,
                    score=read.mean,
                    confidence=_narrow(read.shares, read.mean),
                    probabilities=[
                        ScoreProbability(number, level.label, share)
                        for number, (level, share) in enumerate(zip(levels, read.shares, strict=True))
                    ],
                    label_mass=read.mass,
                )


def _narrow(shares: Sequence[float], mean: float) -> float:
    """1 minus the standard deviation, as a share of the largest one, half of which lies at each end."""
    variance = sum(share * (number - mean) ** 2 for number, share in enumerate(shares))
    return min(max(1 - 2 * math.sqrt(variance) / (len(shares) - 1), 0.0), 1.0)


# ---- what the model is shown -----------------------------------------------------------------------------------------


def _written(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _text(instructions: str | Sequence[dict[str, Any]], place: str) -> str:
    parts = (
        [instructions]
        if isinstance(instructions, str)
        else [text_of(part, f"{place}[{index}]") for index, part in enumerate(instructions)]
    )
    text = "\n".join(parts).strip()
    if not text:
        raise RequestError(f"{place} must not be empty.", param=place)
    return text


def text_of(part: Mapping[str, Any], place: str) -> str:
    """A part of an input as text. Raises RequestError for what is neither text nor JSON."""
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "input_json", "data": dict() | list() as data}:
            return msgspec.json.encode(data).decode()
    raise RequestError(f"{place} must be input_text or input_json; images are not read here.", param=f"{place}.type")


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_choices(choices: Sequence[Option], place: str) -> None:
    _check_count(choices, MAX_CHOICES, place)
    values = {(type(option.value), option.value) for option in choices}
    if len(values) < len(choices):
        raise RequestError(f"{place} must have different values.", param=place)


def _check_count(entries: Sequence[Option] | Sequence[Level], limit: int, place: str) -> None:
    if not 2 <= len(entries) <= limit:
        raise RequestError(f"{place} must have 2 to {limit} entries, got {len(entries)}.", param=place)
