"""Renders the chart and validates its objects, or validates others, in the environment that has the libraries: a task
as JSON on stdin, the answers as JSON on stdout. tools.deploy.chart calls it."""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python
import kubernetes_validate
import yaml  # type: ignore[import-untyped]  # it has neither annotations nor stubs

OPERATORS = ("keda.sh", "monitoring.coreos.com")
"""Groups of objects that Kubernetes has no schema for, as others define them."""
WARNING = 2
"""Of Helm's linter; below it are remarks on style."""


def answer(task: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The objects and what is wrong with them, or the error for which there are none."""
    chart = helm_python.Chart.load(task["chart"])
    try:
        chart.validate_schema(values)
        files = chart.render(values, name=task["release"], namespace=task["namespace"])
    except helm_python.HelmError as error:
        return {"error": str(error)}
    manifests = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    objects = [each for text in manifests for each in yaml.safe_load_all(text) if each]
    report = helm_python.lint(task["chart"], values, strict=True, namespace=task["namespace"])
    lines = [message["error"] for message in report["messages"] if message["severity"] >= WARNING]
    lines += [line for each in objects for line in violations(each, task["kubernetes"])]
    return {"objects": objects, "violations": lines}


def violations(each: dict[str, Any], versions: list[str]) -> list[str]:
    """Fields that Kubernetes does not know, wants, or has another type for."""
    lines = []
    for version in versions:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            lines.append(f"{each['kind']} ({version}): {path}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            if each["apiVersion"].partition("/")[0] not in OPERATORS:
                lines.append(f"{each['kind']} ({version}): there is no such kind in {each['apiVersion']}")
    return lines


if __name__ == "__main__":
    job = json.load(sys.stdin)
    if "objects" in job:
        json.dump([line for each in job["objects"] for line in violations(each, job["kubernetes"])], sys.stdout)
    else:
        json.dump([answer(job, values) for values in job["values"]], sys.stdout)
