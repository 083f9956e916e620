"""`python -m tools.checks [ROOT]`: runs the checks that read or import the tree, and prints the findings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.checks.banned_calls import banned_calls
from tools.checks.import_circles import import_circles
from tools.checks.module_state import module_state
from tools.checks.neutrality import vendor_words
from tools.checks.places import named_places
from tools.checks.platform_imports import platform_imports
from tools.checks.reassigned import reassigned
from tools.checks.torch_free import torch_free
from tools.checks.variables import undeclared_variables
from tools.checks.words import words

CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "core names no vendor": vendor_words,
    "nothing runs what it reads": banned_calls,
    "no module-level state": module_state,
    "no modules import each other": import_circles,
    "platforms import tessera.platform alone": platform_imports,
    "platforms change nothing of another's": reassigned,
    "no machine or registry is named": named_places,
    "names, classes and fields use the field's words": words,
    "environment variables are declared": undeclared_variables,
    "the front stack loads no torch": torch_free,
}


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    failed = 0
    for name, check in CHECKS.items():
        start = time.perf_counter()
        findings = check(root)
        failed += bool(findings)
        print(f"{'FAIL' if findings else 'ok':4}  {name} ({time.perf_counter() - start:.1f} s)")
        for finding in findings:
            print(f"      {finding}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
