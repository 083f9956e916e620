"""`python -m tessera.media`: a media worker, which talks over a socket on its standard input."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, and collecting during them would scan the same objects repeatedly
    # transformers then loads neither torch nor torchvision, which take seconds and 300 MB. What it does to images is
    # done by Pillow and NumPy.
    sys.modules["torch"] = None  # type: ignore[assignment]  # importlib's way to say that there is none
    from tessera.media.worker import main

    sys.exit(main())
