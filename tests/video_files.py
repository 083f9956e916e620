"""Small videos, as encoders write them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.arrays import Array


def frames(count: int, height: int = 64, width: int = 96) -> Array:
    """[count, height, width, 3] uint8: smooth, and each another."""
    down, right = np.indices((height, width))
    first = np.stack([down * 3, right * 2, down + right], axis=-1)
    return np.stack([(first + 9 * number) % 256 for number in range(count)]).astype(np.uint8)


def encoded(
    pixels: Array, rate: int = 30, kind: str = "mp4", codec: str = "libx264", times: Sequence[int] | None = None
) -> bytes:
    """times: of each frame, in frames; those of a steady rate if not given."""
    import av

    data = io.BytesIO()
    with av.open(data, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = pixels.shape[1:3]
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for number, picture in enumerate(pixels):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.pts = times[number]
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return data.getvalue()
