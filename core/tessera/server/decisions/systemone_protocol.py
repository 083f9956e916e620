"""The bodies of the System One API, as transformers and vLLM have it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Raw

from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

MAX_QUESTIONS = 64
MAX_NAME_CHARS = 256
MAX_OPTIONS = 255
MAX_LEVELS = 32

Content = str | dict[str, Any] | list[Any]
"""A text, or JSON that the model is shown as it is."""


class NoulCriteria(msgspec.Struct, forbid_unknown_fields=True):
    """When the answer is yes, and when no."""

    true: Content | None = None
    false: Content | None = None


class NoulQuestion(msgspec.Struct, tag="noul", kw_only=True, forbid_unknown_fields=True):
    """A question of yes or no. One of its fields is needed."""

    instructions: Content | None = None
    criteria: NoulCriteria | None = None


class SystemOneChoice(msgspec.Struct, tag="choice", kw_only=True, forbid_unknown_fields=True):
    """Which of several options fits. criteria: the description of each option."""

    instructions: Content | None = None
    criteria: Annotated[dict[str, Content | None], field_schema(minProperties=1, maxProperties=MAX_OPTIONS)]


class SystemOneScore(msgspec.Struct, tag="score", kw_only=True, forbid_unknown_fields=True):
    """Where on a scale the state is. criteria: its levels, from the lowest."""

    instructions: Content | None = None
    criteria: Annotated[list[Content], field_schema(minItems=1, maxItems=MAX_LEVELS)]


SystemOneQuestion = NoulQuestion | SystemOneChoice | SystemOneScore
_QUESTIONS = field_schema(
    type="object",
    minProperties=1,
    maxProperties=MAX_QUESTIONS,
    propertyNames={"minLength": 1, "maxLength": MAX_NAME_CHARS},
    additionalProperties={"type": "object", "required": ["type"]},
)


class SystemOneRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Questions about a state. model: if it is left out, the first name served."""

    state: Content
    # Each is decoded by itself, so that an error names the question.
    questions: Annotated[dict[str, Raw], _QUESTIONS]
    model: str | None = None
    priority: int | None = None
    cache_salt: Annotated[str, field_schema(maxLength=Limits.salt_chars)] | None = None
    # Images, of which there are none here.
    assets: Annotated[dict[str, Any], field_schema(maxProperties=0)] | None = None


# ---- answers ---------------------------------------------------------------------------------------------------------


class NoulAnswer(msgspec.Struct, tag="noul", kw_only=True):
    """noul: the probability of yes."""

    noul: float


class SystemOneChoiceAnswer(msgspec.Struct, tag="choice", kw_only=True):
    # The most likely option.
    choice: str
    # How far it is above an equal share, 0 to 1.
    confidence: float
    # By option.
    probabilities: dict[str, float]


class SystemOneScoreAnswer(msgspec.Struct, tag="score", kw_only=True):
    # The mean of the levels' numbers, which are from 0.
    score: float
    # The levels by their numbers.
    legend: dict[str, Content]
    # 1 if one level is certain, 0 where the mean distance from the most likely one is no less than by chance.
    confidence: float
    # By the number of the level.
    probabilities: dict[str, float]


SystemOneAnswer = NoulAnswer | SystemOneChoiceAnswer | SystemOneScoreAnswer


class LabelDiagnostics(msgspec.Struct):
    # The probability that the model gives all possible answers together, before they are made to sum to 1.
    label_mass: float
    # Whether one of them is the model's most likely token.
    argmax_is_label: bool


class SystemOneUsage(msgspec.Struct):
    """input_tokens: of the prompts of all questions."""

    input_tokens: int
    output_tokens: int = 0


class SystemOneDecision(msgspec.Struct, kw_only=True):
    """answers, diagnostics: by the name of the question."""

    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    diagnostics: dict[str, LabelDiagnostics]
