"""How much work the features of images and the like are, counted in tokens of prompts, by what steps took.

It depends on both models, what the processor made, and the kernels that compute them, none of which the engine knows;
so it is measured. A step that encodes is then as long as one that computes a chunk of a prompt.
"""

from __future__ import annotations

SHORTEST = 0.02
"""Seconds: steps that take less hold nobody for long, and the machine's other work may be most of their time."""
LEAST_TOKENS = 64
"""Of a prompt, in a step whose time says what a token takes. A step that decodes takes as long with fewer."""
LARGEST = 8
"""A feature counts as no more than this part of what a step may compute, so that a step
encodes some features however long they take."""


class EncodingCost:
    """tokens(): of a feature, at least one; it is one until both were measured. each_step: tokens that a step may
    compute.

    What was faster than known is believed at once, and what was slower, which other load on the machine may explain, by
    a tenth.
    """

    def __init__(self, each_step: int) -> None:
        self._largest_cost = max(each_step // LARGEST, 1)
        # Seconds of a prompt's token; 0.0 until it is known.
        self._of_token = 0.0
        # Seconds of a feature, by modality.
        self._of_feature: dict[str, float] = {}

    def learn(self, seconds: float, num_tokens: int, modality: str | None, num_features: int) -> None:
        """A step took so long. num_tokens: that it computed. modality, num_features: what its busiest tower encoded;
        None where it was of several kinds."""
        if seconds < SHORTEST:
            return
        if num_features == 0:
            if num_tokens >= LEAST_TOKENS:
                self._of_token = _believed(self._of_token, seconds / num_tokens)
        elif modality is not None:
            left = max(seconds - num_tokens * self._of_token, 0.0)
            self._of_feature[modality] = _believed(self._of_feature.get(modality, 0.0), left / num_features)

    def tokens(self, modality: str) -> int:
        known = self._of_feature.get(modality, 0.0)
        return min(max(round(known / self._of_token), 1), self._largest_cost) if self._of_token else 1


def _believed(before: float, seconds: float) -> float:
    return before + 0.1 * (min(seconds, 2 * before) - before) if 0 < before < seconds else seconds
