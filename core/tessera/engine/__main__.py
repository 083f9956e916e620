"""`python -m tessera.engine EXECUTOR`: an engine in a process of its own, configured over standard input. EXECUTOR:
dotted path of what it imports until then."""

from __future__ import annotations

import gc
import logging
import os
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave nothing to collect, and would be searched again and again
    from tessera.engine.process import DIED, main

    try:
        code = main(sys.stdin.buffer, sys.argv[1])
    except BaseException:
        logging.getLogger("tessera.engine").critical("the engine died", exc_info=True)
        # Threads and devices may hang now. Whoever waits for the answers must hear of it at once.
        logging.shutdown()
        os._exit(DIED)
    sys.exit(code)
