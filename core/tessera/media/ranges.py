"""What each token of a prompt sees of its images through cross attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tessera.arrays import Array
from tessera.media.placed import PlacedMedia


@dataclass(frozen=True)
class SeenRanges:
    """Positions of a request's images are numbered so that each token sees a range: first those of all images that show
    something, then those that fill images up. A token sees the image whose token it is or follows, together with
    others whose tokens stand directly before that one's, and no image before these. Tokens before all images see
    everything, also what fills images up: transformers' code lifts the mask of a token that would see nothing."""

    # [3, tokens of the prompt] int32: the first position that each token sees, how many, and whether these are of an
    # image that it comes behind.
    prompt: Array

    @classmethod
    def from_media(cls, length: int, media: Sequence[PlacedMedia]) -> SeenRanges:
        """length: of the prompt. media: its images, in the order of their places."""
        ranges = np.zeros((3, length), np.int32)
        ranges[1] = sum(one.length for one in media)
        places = [one.token for one in media]
        ends = np.cumsum([one.num_shown for one in media])
        together = [at - index for index, at in enumerate(places)]  # equal for tokens that follow each other
        index = 0
        for _, group in groupby(together):
            begin = int(ends[index - 1]) if index else 0
            for _ in group:
                ranges[:, places[index] :] = [[begin], [int(ends[index]) - begin], [1]]
                index += 1
        return cls(ranges)

    @property
    def last(self) -> Array:
        """[3] int32: of each token behind the prompt."""
        return self.prompt[:, -1]

    def of_tokens(self, start: int, end: int) -> Array:
        """[3, end - start] int32: of tokens of the prompt, and behind it."""
        known = self.prompt[:, start:end]
        return np.concatenate([known, np.repeat(self.last[:, None], end - start - known.shape[1], 1)], axis=1)
