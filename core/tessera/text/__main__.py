"""`python -m tessera.text`: a text worker, which talks over a socket on its standard input."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, and collecting during them would scan the same objects repeatedly
    from tessera.text.worker import main

    sys.exit(main())
