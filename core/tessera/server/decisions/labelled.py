"""What the model is shown of a question, with the labels of its possible answers, and how their probabilities are
read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.request import Logprob
from tessera.server.decisions.labels import Label


class LabelShares(NamedTuple):
    """shares: the probability of each label, of which the sum is 1. mass: that sum before, of the whole vocabulary."""

    shares: Sequence[float]
    mass: float

    @property
    def best(self) -> int:
        """The index of the most likely label."""
        return max(range(len(self.shares)), key=self.shares.__getitem__)

    @property
    def mean(self) -> float:
        """Of the labels' indices."""
        return sum(index * share for index, share in enumerate(self.shares))

    @property
    def above_equal(self) -> float:
        """0 if the largest share is no larger than an equal one, 1 if it is all."""
        if len(self.shares) == 1:
            return 1.0
        equal = 1 / len(self.shares)
        return min(max((max(self.shares) - equal) / (1 - equal), 0.0), 1.0)


@dataclass(frozen=True)
class LabelledText:
    """text: what the model is shown."""

    text: str
    labels: Sequence[Label]

    @classmethod
    def listing(cls, question: str, labels: Sequence[Label], entries: Sequence[tuple[str, str | None]]) -> LabelledText:
        """entries: what each label stands for, and its description."""
        listed = "\n".join(
            f"{label.text}: {entry}" + (f" - {description}" if description else "")
            for label, (entry, description) in zip(labels, entries, strict=True)
        )
        answer = "Answer with one of the labels before the colons only."
        return cls("\n\n".join(filter(None, (question, listed, answer))), labels)

    @property
    def tokens(self) -> list[int]:
        """All tokens of its labels."""
        return [token for label in self.labels for token in label.tokens]

    def shares(self, position: Mapping[int, Logprob]) -> LabelShares:
        """position: the log probabilities of `tokens` where the answer begins. Labels that are all impossible share
        equally."""
        masses = [sum(math.exp(position[token].logprob) for token in label.tokens) for label in self.labels]
        total = sum(masses)
        shares = [mass / total for mass in masses] if total else [1 / len(masses)] * len(masses)
        return LabelShares(shares, min(total, 1.0))
