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

    setting = Setting(platform, tiny == "True", Path(work), {})
    engine = setting.engine(setting.large, rows=setting.scale(64, 2), tokens=setting.scale(8192, 64))
    loaded = time.monotonic()
    engine.run(engine.prompts([setting.scale(32, 4)]), [1])
    ended = time.monotonic()
    print(json.dumps({"seconds": ended - float(began), "loaded": loaded - float(began)}), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
