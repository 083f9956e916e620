"""`python -m tessera.engine EXECUTOR`: an engine in its own process, configured over standard input. EXECUTOR: dotted
path of the executor, which is imported while the process waits for its configuration."""

from __future__ import annotations

import gc
import logging
import os
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, but would trigger many collections
    from tessera.engine.process import DIED, main
    from tessera.errors import TesseraError

    try:
        code = main(open(sys.stdin.fileno(), "rb", closefd=False), sys.argv[1])  # noqa: SIM115  # open until the end
    except BaseException as error:
        log = logging.getLogger("tessera.engine")
        if isinstance(error, TesseraError):
            log.critical("the engine died: %s", error.message)
        else:
            log.critical("the engine died", exc_info=True)
        # A normal exit may block on a thread or a device. The parent must learn of the failure at once.
        logging.shutdown()
        os._exit(DIED)
    sys.exit(code)
