"""A process that ends with its first token: `python -m benchmarks.gpu.first_token PLATFORM WORK TINY BEGAN`. BEGAN:
when it was started, on the system's monotonic clock."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    platform, work, tiny, began = sys.argv[1:]
    from benchmarks.gpu.setting import Setting

    given = Setting(platform, tiny == "True", Path(work), {})
    engine = given.engine(given.large, rows=given.of(64, 2), tokens=given.of(8192, 64))
    loaded = time.monotonic()
    engine.run(engine.prompts([given.of(32, 4)]), [1])
    ended = time.monotonic()
    print(json.dumps({"seconds": ended - float(began), "loaded": loaded - float(began)}), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
