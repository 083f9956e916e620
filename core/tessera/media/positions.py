"""Positions of tokens on three axes, time, height and width: of text all three are one, and the tokens of an image have
its grid's. M-RoPE, arXiv:2409.12191."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.media.placed import PlacedMedia

GRID = "image_grid_thw"
"""The name of an image's grid among its inputs: [1, 3] integers, in patches."""
AXES = 3


@dataclass(frozen=True)
class AxisPositions:
    """Of one prompt."""

    # [AXES, tokens] int32.
    prompt: Array
    # What is added to the position in the row of a token behind the prompt, on all axes.
    shift: int

    @classmethod
    def from_media(cls, num_tokens: int, media: Sequence[PlacedMedia], merge: int) -> AxisPositions:
        """merge: patches that a token stands for, in height and in width. Sounds have the positions of text. Raises
        RequestError for media whose grid has not as many tokens as places."""
        positions = np.zeros((AXES, num_tokens), np.int32)
        done = position = 0
        for one in media:
            if one.modality == "audio":
                continue
            grid = _grid(one, merge)
            positions[:, done : one.start] = np.arange(position, position + one.start - done)
            position += one.start - done
            positions[:, one.start : one.end] = np.indices(grid).reshape(AXES, -1) + position
            done = one.end
            position += max(grid)
        positions[:, done:] = np.arange(position, position + num_tokens - done)
        return cls(positions, position - done)

    def of_tokens(self, start: int, end: int) -> Array:
        """[AXES, end - start]: of the row's tokens from start on, behind the prompt too."""
        known = self.prompt[:, start:end]
        behind = np.arange(start + known.shape[1], end, dtype=np.int32) + np.int32(self.shift)
        return np.concatenate([known, np.broadcast_to(behind, (AXES, len(behind)))], axis=1)


def _grid(media: PlacedMedia, merge: int) -> tuple[int, int, int]:
    grid = media.inputs.get(GRID)
    size = media.end - media.start
    if grid is not None and grid.size == AXES:
        time, height, width = (int(number) for number in grid.reshape(-1))
        tokens = time, height // merge, width // merge
        if size == media.places.size == time * tokens[1] * tokens[2]:
            return tokens
    raise RequestError("An image of the prompt has another number of tokens than its grid says.", param="prompt")
