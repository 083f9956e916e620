"""An image from the bytes of a file, which may be anything."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from tessera.errors import ModelError, RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

# As Pillow names them. It tries no others, so no reader that starts a program or follows a path.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_FORMAT_NAMES = "PNG, JPEG, WebP, GIF, BMP or TIFF"


def read_image(data: bytes, max_pixels: int, opened: Callable[[int], object] | None = None) -> Image:
    """The image in RGB, upright as its EXIF orientation says; of an animation, the first frame. opened: called with the
    number of pixels before any is decoded. Raises RequestError for what is no image, is broken or has more than
    max_pixels, and MemoryError."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise ModelError("Images need Pillow; run: pip install 'tessera-llm[vision]'") from error
    too_large = RequestError(f"The image has more than {max_pixels} pixels; send a smaller one.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of many pixels, and of fields that it skips
            with PIL.Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise too_large
                if opened is not None:
                    opened(width * height)
                # What transformers' load_image does to a file.
                upright = PIL.ImageOps.exif_transpose(image)
                return upright.convert("RGB")
    except PIL.UnidentifiedImageError as error:
        raise RequestError(f"The image is broken or of a kind that is not read here; send {_FORMAT_NAMES}.") from error
    except PIL.Image.DecompressionBombError as error:
        raise too_large from error
    except (MemoryError, RequestError):
        raise
    except Exception as error:
        # A reader may raise anything for a broken file: OSError, SyntaxError, struct.error, ...
        raise RequestError("The image is truncated or broken; send it anew.") from error
