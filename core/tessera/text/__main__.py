"""`python -m tessera.text`: a text worker, over the socket that is its standard input."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave nothing to collect, and would be searched again and again
    from tessera.text.worker import main

    sys.exit(main())
