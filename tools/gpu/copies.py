"""Whether attention whose keys hardware copies gives what loading them does, for three kinds of layers: `python -m
tools.gpu.copies --platform cuda plain`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera.testing.conformance import Target
from tessera_triton import TritonAttention
from tessera_triton.attention import tried_here
from tessera_triton.copying import CHOICES, OFF, Copying

_PLAIN = AttentionCase(((66, 130),), 64, 8, 2, 128, dtype="bfloat16")
CASES = {
    "plain": _PLAIN,
    "window and sinks": replace(_PLAIN, head_dim=64, window=50, sinks=True),
    "heads of 256": replace(_PLAIN, head_dim=256, block_size=32),
}


def differences(platform: str, copies: str) -> Iterator[tuple[str, str]]:
    """Of each case, what is wrong, or "as loaded"."""
    target = Target.named(platform, shared=False)
    backend = next(one for one in target.backends if isinstance(one, TritonAttention))
    for name, case in CASES.items():
        off = TritonAttention(backend.facts, backend.launch, copies=OFF)
        layer: Any = AttentionTrial(off, case, index_dtype="int32", ops=target.bound()).layer  # the library's own
        copying = Copying(backend.facts, backend.launch, layer.spec, layer.factors, copies == "specialized")
        if not copying.able:
            yield name, "not copied on this device"
            continue
        yield name, tried_here(copying, layer.load, target.device) or "as loaded"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.copies", description=__doc__)
    parser.add_argument("--platform", required=True)
    parser.add_argument("copies", choices=CHOICES[1:])
    given = parser.parse_args()
    wrong = []
    for name, difference in differences(given.platform, given.copies):
        print(f"{name}: {difference}", flush=True)
        if difference not in ("as loaded", "not copied on this device"):
            wrong.append(name)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
