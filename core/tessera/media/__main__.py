"""`python -m tessera.media`: a media worker, which talks over a socket on its standard input."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, and collecting during them would scan the same objects repeatedly
    from tessera.media.worker import main

    sys.exit(main())
