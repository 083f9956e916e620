"""Lists what an installation brings, as CycloneDX in dist/tessera.cdx.json and as a table in dist/LICENCES.md: `python
-m tools.sbom`. It fails where a distribution of constraints.txt is not in the environment that runs it, or where a
licence is unknown or not allowed by licences.toml beside this file. cyclonedx-py, which reads the environment, is
installed into build/sbom."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tools.own_environment import own_environment
from tools.sbom.licences import Policy
from tools.sbom.needs import CORE, DEVELOPMENT, SERVING, needed_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / "build/sbom"
CONSTRAINTS = ROOT / "constraints.txt"
PINS = (CONSTRAINTS, HERE / "constraints.txt")
PACKAGES = ("cyclonedx-bom",)
NOT_OURS = frozenset({"pip"})
"""Of every environment, and no part of an installation."""
BILL, TABLE = "tessera.cdx.json", "LICENCES.md"
"""The files in dist/."""
SCOPES = {SERVING: "required", DEVELOPMENT: "excluded"}
"""CycloneDX's words; extras are "optional"."""


def components_of(python: Path) -> dict[str, Any]:
    """The bill of materials of an environment. Raises CalledProcessError."""
    program = own_environment(ENVIRONMENT, PINS, (PACKAGES,)).parent / "cyclonedx-py"
    command = [str(program), "environment", str(python), "--pyproject", str(ROOT / "pyproject.toml")]
    # The same environment gives the same file.
    command += ["--output-reproducible", "--output-file", "-"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    bill: dict[str, Any] = json.loads(done.stdout)
    return bill


def cleaned(bill: Mapping[str, Any], needed: Mapping[str, str]) -> dict[str, Any]:
    """With the scope of each component, and without paths of the machine on which it was made."""
    components = []
    for component in bill["components"]:
        name = canonicalize_name(component["name"])
        if name not in NOT_OURS:
            references = component.get("externalReferences", [])
            local = [one for one in references if not one["url"].startswith("file:")]
            scope = SCOPES.get(needed.get(name, DEVELOPMENT), "optional")
            components.append({**component, "externalReferences": local, "scope": scope})
    kept = {component["bom-ref"] for component in components} | {bill["metadata"]["component"]["bom-ref"]}
    return {
        **bill,
        "components": components,
        "dependencies": [one for one in bill["dependencies"] if one["ref"] in kept],
    }


def missing(components: Sequence[Mapping[str, Any]], constraints: str) -> Iterator[str]:
    """Distributions that are pinned, and not installed."""
    installed = {canonicalize_name(component["name"]) for component in components}
    for name in re.findall(r"^([\w.-]+)==", constraints, re.MULTILINE):
        if canonicalize_name(name) not in installed:
            yield f"{name}: constraints.txt names it, and it is not installed; pip install -c constraints.txt {name}"


def table(components: Sequence[Mapping[str, Any]], needed: Mapping[str, str], policy: Policy) -> str:
    """The licences of all components, in Markdown."""
    lines = ["# Licences of what an installation brings", "", "| Distribution | Version | Licence | Needed for |"]
    lines.append("|---|---|---|---|")
    for component in sorted(components, key=lambda part: canonicalize_name(part["name"])):
        name = canonicalize_name(component["name"])
        licences = ", ".join(policy.licences(component))
        lines.append(f"| {name} | {component['version']} | {licences} | {needed.get(name, DEVELOPMENT)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    try:
        bill = components_of(Path(sys.executable))
    except subprocess.CalledProcessError as error:
        print(error.stderr or error)
        return 1
    needed, policy = needed_for(CORE), Policy.read(HERE / "licences.toml")
    bill = cleaned(bill, needed)
    components = bill["components"]
    problems = [*missing(components, CONSTRAINTS.read_text(encoding="utf-8")), *policy.problems(components)]
    into = ROOT / "dist"
    into.mkdir(exist_ok=True)
    (into / BILL).write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    (into / TABLE).write_text(table(components, needed, policy), encoding="utf-8")
    print(f"{len(components)} components, of which {list(needed.values()).count(SERVING)} are needed to serve")
    print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
