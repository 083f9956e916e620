"""The bodies of the Decisions API, as OpenAI's client knows them (openai.types.Decision)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tessera.server.generation.items import Item
from tessera.server.generation.usage import ResponseUsage
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_NAME_CHARS = 256

_Instructions = str | list[dict[str, Any]]
_NAME = Annotated[str, field_schema(maxLength=MAX_NAME_CHARS)]


class Option(msgspec.Struct):
    """One of the values of a choice. A text and a boolean of the same letters are different values."""

    value: str | bool
    description: str | None = None


class Level(msgspec.Struct):
    label: str
    description: str | None = None


class Predicate(msgspec.Struct, tag="predicate", kw_only=True):
    """How likely a statement is."""

    instructions: _Instructions
    name: _NAME | None = None


class Choice(msgspec.Struct, tag="choice", kw_only=True):
    """Which of several values fits."""

    instructions: _Instructions
    choices: Annotated[list[Option], field_schema(minItems=2, maxItems=MAX_CHOICES)]
    name: _NAME | None = None


class Score(msgspec.Struct, tag="score", kw_only=True):
    """Where on a scale the input is; levels: from the lowest."""

    instructions: _Instructions
    levels: Annotated[list[Level], field_schema(minItems=2, maxItems=MAX_LEVELS)]
    name: _NAME | None = None


Question = Predicate | Choice | Score


class DecisionRequest(msgspec.Struct, kw_only=True):
    """Questions about one input. null is the same as leaving a field out."""

    input: str | list[Item]
    questions: Annotated[list[Question], field_schema(minItems=1, maxItems=MAX_QUESTIONS)]
    model: str | None = None
    priority: int | None = None
    user: Annotated[str, field_schema(maxLength=Limits.salt_chars)] | None = None
    prompt_cache_key: Annotated[str, field_schema(maxLength=Limits.salt_chars)] | None = None


# ---- answers ---------------------------------------------------------------------------------------------------------


class PredicateAnswer(msgspec.Struct, tag="predicate", kw_only=True):
    """label_mass, here and below: the probability that the model gives all possible answers together, before they are
    made to sum to 1."""

    name: str | None
    probability: float
    label_mass: float


class ChoiceProbability(msgspec.Struct):
    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, tag="choice", kw_only=True):
    """confidence: how far the most likely value is above an equal share, 0 to 1."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]
    label_mass: float


class ScoreProbability(msgspec.Struct):
    """value: the level's number, from 0."""

    value: int
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, tag="score", kw_only=True):
    """score: the mean of the levels' numbers. confidence: 1 without spread, 0 where it is as large as it can be."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]
    label_mass: float


class RefusalAnswer(msgspec.Struct, tag="refusal", kw_only=True):
    """The model would answer something else than what it was asked to choose from."""

    name: str | None
    label_mass: float


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


class Decision(msgspec.Struct, kw_only=True):
    """answers: in the order of the questions."""

    model: str
    answers: list[Answer]
    usage: ResponseUsage
