"""A question of the System One API as the model is shown it, and its answer from the probabilities of the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from tessera.errors import RequestError
from tessera.server.decisions.labelled import LabelledText, LabelShares
from tessera.server.decisions.labels import Labels
from tessera.server.decisions.run import LabelLogprobs
from tessera.server.decisions.systemone_protocol import (
    MAX_LEVELS,
    MAX_NAME_CHARS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    Content,
    LabelDiagnostics,
    NoulAnswer,
    NoulCriteria,
    NoulQuestion,
    SystemOneAnswer,
    SystemOneChoice,
    SystemOneChoiceAnswer,
    SystemOneQuestion,
    SystemOneScore,
    SystemOneScoreAnswer,
)
from tessera.server.decode import decoded

_QUESTION = msgspec.json.Decoder(SystemOneQuestion)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class NamedQuestion:
    """A question, and what the model is shown of it."""

    name: str
    question: SystemOneQuestion
    labelled: LabelledText

    @classmethod
    def build(cls, name: str, question: SystemOneQuestion, place: str, labels: Labels) -> NamedQuestion:
        """place: in the request. labels: is loaded. Raises RequestError."""
        instructions, criteria = _text(question.instructions), f"{place}.criteria"
        match question:
            case NoulQuestion():
                labelled = _yes_or_no(instructions, question.criteria or NoulCriteria(), place, labels)
            case SystemOneChoice(criteria=options):
                _check_count(options, MAX_OPTIONS, criteria)
                entries = [(option, _text(description)) for option, description in options.items()]
                labelled = LabelledText.listing(instructions, labels.distinct(len(options), criteria), entries)
            case SystemOneScore(criteria=levels):
                _check_count(levels, MAX_LEVELS, criteria)
                lines = [(_text(level), None) for level in levels]
                labelled = LabelledText.listing(instructions, labels.numbered(len(levels), criteria), lines)
        return cls(name, question, labelled)

    def answer(self, logprobs: LabelLogprobs) -> tuple[SystemOneAnswer, LabelDiagnostics]:
        read = self.labelled.shares(logprobs.position)
        return self._answer(read), LabelDiagnostics(read.mass, logprobs.argmax in self.labelled.tokens)

    def _answer(self, read: LabelShares) -> SystemOneAnswer:
        match self.question:
            case NoulQuestion():
                return NoulAnswer(noul=read.shares[0])
            case SystemOneChoice(criteria=options):
                names = list(options)
                return SystemOneChoiceAnswer(
                    choice=names[read.best],
                    confidence=read.above_equal,
                    probabilities=dict(zip(names, read.shares, strict=True)),
                )
            case SystemOneScore(criteria=levels):
                return SystemOneScoreAnswer(
                    score=read.mean,
                    legend={str(number): level for number, level in enumerate(levels)},
                    confidence=_near(read),
                    probabilities={str(number): share for number, share in enumerate(read.shares)},
                )


def named_questions(raw: Mapping[str, Raw], labels: Labels) -> list[NamedQuestion]:
    """labels: is loaded. Raises RequestError."""
    if not 1 <= len(raw) <= MAX_QUESTIONS:
        raise RequestError(f"questions must have 1 to {MAX_QUESTIONS} entries, got {len(raw)}.", param="questions")
    found = []
    for number, (name, question) in enumerate(raw.items()):
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise RequestError(f"A question's name must have 1 to {MAX_NAME_CHARS} characters.", param="questions")
        # What a client sends is said back only if it can be nothing but a name.
        place = f"questions.{name}" if _PLAIN_NAME.fullmatch(name) else f"questions[{number}]"
        found.append(NamedQuestion.build(name, decoded(_QUESTION, question, place), place, labels))
    return found


def state_text(state: Content) -> str:
    """Raises RequestError."""
    text = _text(state)
    if not text:
        raise RequestError("state must not be empty.", param="state")
    return text


def _near(read: LabelShares) -> float:
    """1 minus the mean distance from the most likely level, as a share of what it is from the middle of a scale whose
    levels are all as likely."""
    count = len(read.shares)
    if count == 1:
        return 1.0
    distance = sum(share * abs(number - read.best) for number, share in enumerate(read.shares))
    by_chance = sum(abs(number - (count - 1) / 2) for number in range(count)) / count
    return min(max(1 - distance / by_chance, 0.0), 1.0)


# ---- what the model is shown -----------------------------------------------------------------------------------------


def _yes_or_no(instructions: str, criteria: NoulCriteria, place: str, labels: Labels) -> LabelledText:
    descriptions = [_text(criteria.true), _text(criteria.false)]
    if not instructions and not any(descriptions):
        raise RequestError(f"{place} must have instructions or criteria.", param=f"{place}.instructions")
    words = labels.matching(("Yes", "No"))
    if not words:
        entries = [("Yes", descriptions[0]), ("No", descriptions[1])]
        return LabelledText.listing(instructions, labels.distinct(2, place), entries)
    lines = [f"{word.text}: {text}" for word, text in zip(words, descriptions, strict=True) if text]
    parts = (instructions, "\n".join(lines), "Answer with Yes or No only.")
    return LabelledText("\n\n".join(filter(None, parts)), words)


def _text(content: Content | None) -> str:
    if content is None:
        return ""
    return content.strip() if isinstance(content, str) else msgspec.json.encode(content).decode()


def _check_count(entries: Sized, limit: int, place: str) -> None:
    if not 1 <= len(entries) <= limit:
        raise RequestError(f"{place} must have 1 to {limit} entries, got {len(entries)}.", param=place)
