"""Positions of tokens on three axes, time, height and width: of text all three are one, and the tokens of an image or a
video have its grid's. M-RoPE, arXiv:2409.12191, and for the time of a video arXiv:2502.13923."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.media.placed import PlacedMedia

GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
"""By modality, the name of the grid among the inputs: [1, 3] integers, in patches."""
SECONDS = "second_per_grid_ts"
"""The name of the seconds between two rows of a video's grid among its inputs, [1] float32, for models whose positions
tell time."""
AXES = 3


@dataclass(frozen=True)
class AxisPositions:
    """Of one prompt."""

    # [AXES, tokens] int32.
    prompt: Array
    # What is added to the position in the row of a token behind the prompt, on all axes.
    shift: int

    @classmethod
    def from_media(
        cls, num_tokens: int, media: Sequence[PlacedMedia], merge: int, per_second: float = 0.0
    ) -> AxisPositions:
        """As get_rope_index() of transformers' models: what follows an image or a video begins behind its height and
        width, whatever time it has; sounds have the positions of text. merge: patches that a token stands for, in
        height and in width. per_second: positions in time, where a model counts it. Raises RequestError for media whose
        grid has not as many tokens as places."""
        positions = np.zeros((AXES, num_tokens), np.int32)
        done = position = 0
        seen = [one for one in media if one.modality != "audio"]
        for start, grid, interval in [grid for one in seen for grid in _grids(one, merge, per_second)]:
            positions[:, done:start] = np.arange(position, position + start - done)
            position += start - done
            axes = np.indices(grid).reshape(AXES, -1)
            axes[0] = axes[0].astype(np.float32) * interval
            done = start + axes.shape[1]
            positions[:, start:done] = axes + position
            position += max(grid[1:])
        positions[:, done:] = np.arange(position, position + num_tokens - done)
        return cls(positions, position - done)

    def of_tokens(self, start: int, end: int) -> Array:
        """[AXES, end - start]: of the row's tokens from start on, behind the prompt too."""
        known = self.prompt[:, start:end]
        behind = np.arange(start + known.shape[1], end, dtype=np.int32) + np.int32(self.shift)
        return np.concatenate([known, np.broadcast_to(behind, (AXES, len(behind)))], axis=1)


class _Grid(NamedTuple):
    """An image, a video, or a frame of a video that has text between its frames."""

    # The position in the prompt of its first token.
    start: int
    # In tokens: of time, height and width.
    grid: tuple[int, int, int]
    # What its positions in time are multiplied with.
    interval: np.float32


def _grids(media: PlacedMedia, merge: int, per_second: float) -> list[_Grid]:
    """Raises RequestError."""
    grid, breaks = media.inputs.get(GRIDS[media.modality]), np.flatnonzero(np.diff(media.places) > 1) + 1
    if grid is not None and grid.size == AXES:
        time, height, width = (int(number) for number in grid.reshape(-1))
        shape = time, height // merge, width // merge
        starts, sizes = media.places[[0, *breaks]], np.diff([0, *breaks, media.places.size])
        apart = len(starts) == time
        if media.places.size == math.prod(shape) and (apart or len(starts) == 1) and (sizes == sizes[0]).all():
            seconds = media.inputs.get(SECONDS, np.ones(1, np.float32)).reshape(-1)[0]
            interval = np.float32(per_second) * np.float32(seconds) if media.modality == "video" else np.float32(0)
            frame = (1, *shape[1:]) if apart else shape
            return [_Grid(int(start), frame, interval or np.float32(1)) for start in starts]
    kind = "A video" if media.modality == "video" else "An image"
    raise RequestError(f"{kind} of the prompt has another number of tokens than its grid says.", param="prompt")
