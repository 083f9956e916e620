"""Objects of other projects have the fields that those define."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.definitions import DEFINITIONS
from tools.deploy.chart import Rendering, violations

EXAMPLES = ("kserve/serving-runtime.yaml", "kserve/inference-service.yaml", "inference-gateway/inference-pool.yaml")


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def validate(each: Mapping[str, Any]) -> None:
    jsonschema.validate(each, DEFINITIONS[each["apiVersion"], each["kind"]])


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples(root: Path, example: str) -> None:
    for each in objects(root / "deploy" / example):
        validate(each)


@pytest.mark.parametrize("kind", ["ScaledObject", "ServiceMonitor"])
def test_what_the_chart_makes_for_operators(renderings: dict[str, Rendering], kind: str) -> None:
    made = [rendering.get(kind) for rendering in renderings.values() if kind in rendering.kinds]
    assert made
    for each in made:
        validate(each)


def test_a_misspelt_field_is_an_error(root: Path) -> None:
    pool, _ = objects(root / "deploy/inference-gateway/inference-pool.yaml")
    pool["spec"]["endpointPickerRef"]["portNumber"] = pool["spec"]["endpointPickerRef"].pop("port")
    with pytest.raises(jsonschema.ValidationError, match="portNumber"):
        validate(pool)


def test_the_serving_runtime_s_pod_is_one_of_kubernetes(root: Path) -> None:
    (runtime,) = objects(root / "deploy/kserve/serving-runtime.yaml")
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tessera"}, "spec": spec}
    assert violations([pod]) == []
    spec["containers"][0]["livenesProbe"] = {}
    assert len(violations([pod])) == 2
