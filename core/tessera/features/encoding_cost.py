"""How much work the features of images and the like are, counted in tokens of prompts, by what steps took.

It depends on both models, what the processor made, and the kernels that compute them, none of which the engine knows;
so it is measured. A step that encodes is then as long as one that computes a chunk of a prompt.
"""

from __future__ import annotations

from tessera.step_times import believed

SHORTEST = 0.02
"""Seconds: steps that take less hold nobody for long, and the machine's other work may be most of their time."""
LEAST_TOKENS = 64
"""Of a prompt, in a step whose time says what a token takes. A step that decodes takes as long with fewer."""
LARGEST = 8
"""A feature counts as no more than this part of what a step may compute, so that a step encodes some features however
long they take."""


class EncodingCost:
    """tokens(): of a feature, at least one; it is one until both were measured. each_step: tokens that a step may
    compute."""

    def __init__(self, each_step: int) -> None:
        self._largest_cost = max(each_step // LARGEST, 1)
        # Seconds of a prompt's token; None until it is known.
        self._of_token: float | None = None
        # Seconds of a feature, by modality.
        self._of_feature: dict[str, float] = {}

    def learn(self, seconds: float, num_tokens: int, modality: str | None, num_features: int) -> None:
        """A step took so long. num_tokens: that it computed. modality, num_features: what its busiest tower encoded;
        None where it was of several kinds."""
        if seconds < SHORTEST:
            return
        if num_features == 0:
            if num_tokens >= LEAST_TOKENS:
                each = seconds / num_tokens
                self._of_token = each if self._of_token is None else believed(self._of_token, each)
        elif modality is not None:
            beside = min(
                num_tokens * (self._of_token or 0.0), 0.9 * seconds
            )  # the tokens may have taken less than usual
            each = (seconds - beside) / num_features
            self._of_feature[modality] = believed(self._of_feature.get(modality, each), each)

    def tokens(self, modality: str) -> int:
        if self._of_token is None:
            return 1
        return min(max(round(self._of_feature.get(modality, 0.0) / self._of_token), 1), self._largest_cost)
