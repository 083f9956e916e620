"""The child process of a probe: `python -m tessera.plugins.probe_child package.module:function` writes JSON to stdout.

Output of the probe, from Python or native code, goes to stderr, so that it cannot be mistaken for the answer.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from tessera.platform import Probe
from tessera.plugins.loading import describe
from tessera.plugins.paths import load_path


def main(path: str) -> None:
    answer_to = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = _ask(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # reported to the parent, as text
        answer = {"error": f"raised {describe(error)}"}
    with os.fdopen(answer_to, "wb") as file:
        file.write(msgspec.json.encode(answer))
    # Do not wait for threads and exit handlers that the probe left behind.
    os._exit(0)


def _ask(path: str) -> Any:
    found = load_path(path)()
    if isinstance(found, Probe):
        return found
    return {"error": f"returned {type(found).__name__}, not tessera.platform.Probe"}


if __name__ == "__main__":
    main(sys.argv[1])
