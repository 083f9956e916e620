"""Generates docs/support-matrix.md, which shows what computes each op in each dtype on the platforms of this
repository: `python -m tools.support_matrix`. `--perf` measures the speed of each native op and prints it instead."""

from __future__ import annotations

import argparse
import platform as machine
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tessera.testing.conformance import Target, matrix, perf_cases, tried

PAGE = Path(__file__).parents[1] / "docs/support-matrix.md"
PLATFORMS: Mapping[str, str] = {
    "reference": "tessera.testing:ReferencePlatform",
    "strict": "tessera.testing:StrictPlatform",
    "cpu": "tessera_cpu.platform:CpuPlatform",
}
"""The platforms on the page, by name."""

_HEADING = """# Support matrix

Who computes each op on the platforms of this repository. `python -m tools.support_matrix` writes this page, and a test
compares it; `tessera conformance --platform NAME --matrix FILE` writes the table of any platform.

| Cell | Meaning |
|---|---|
| native | a kernel of the platform's, at every sample spec of the op |
| native in part | a kernel at some of them, the reference at the others |
| native parts | a composite that is bound as its parts, of which kernels compute some |
| reference | core's reference, on the platform's device |
| n/a | the platform does not claim this dtype, or brings a runner of its own |

How fast the native ones are beside the reference depends on the machine: `python -m tools.support_matrix --perf`
measures and prints it.
"""


def page() -> str:
    tables = (f"## {name}\n\n{matrix(Target(path))}\n" for name, path in PLATFORMS.items())
    return "\n".join([_HEADING, *tables])


def measured() -> str:
    """The tables with speeds, and where and when they were measured."""
    today = datetime.now(UTC).date().isoformat()
    where = f"`python -m tools.support_matrix --perf`, {machine.platform()}, {today}"
    lines = [f"{where}; at 1 / 16 / 128 tokens, attention of 16 rows that decode / of 128 tokens of a prompt."]
    for name, path in PLATFORMS.items():
        target = Target(path)
        results = [tried(case) for case in perf_cases(target, judged=False)]
        lines += [f"\n## {name}\n", matrix(target, results)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.support_matrix", description=__doc__)
    parser.add_argument("--perf", action="store_true", help="measure, and print instead of writing")
    options = parser.parse_args(arguments)
    if options.perf:
        print(measured())
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
