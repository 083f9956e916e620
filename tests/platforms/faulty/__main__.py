"""Plants mistakes one by one and says which the conformance kit finds, and which it names at the op or the part of the
contract that is wrong before anything else:

    python -m tests.platforms.faulty --kind sizes
    python -m tests.platforms.faulty --fault KeysOf1024 --all
"""

from __future__ import annotations

import argparse
from collections import Counter

from tests.platforms.faulty import FAULTS
from tests.platforms.faulty.fault import KINDS
from tests.platforms.faulty.outcome import PLACES, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=[kind for kind in KINDS if kind])
    parser.add_argument("--fault", action="append")
    parser.add_argument("--place", choices=PLACES)
    parser.add_argument("--all", action="store_true", help="every case of silver, not only those of the mistake's op")
    asked = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    for name, fault in FAULTS.items():
        if asked.fault and name not in asked.fault:
            continue
        if (asked.kind and fault.kind != asked.kind) or (not asked.fault and not fault.kind):
            continue
        if asked.place and asked.place not in fault.places:
            continue
        found = outcome(name, whole=asked.all)
        print(found.line, flush=True)
        counts.setdefault(fault.kind, Counter())[found.verdict] += 1
    for kind, verdicts in counts.items():
        print(f"{kind}: {sum(verdicts.values())} planted, {verdicts['named']} named at their place, ", end="")
        print(f"{verdicts['found']} found elsewhere, {verdicts['missed']} missed")


if __name__ == "__main__":
    main()
