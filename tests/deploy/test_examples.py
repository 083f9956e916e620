"""The examples beside the chart: their flags are the server's, their graces long enough, and their selectors find its
pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tessera._version import __version__
from tessera.cli.serve import serve
from tessera.server.security import OPEN_PATHS
from tools.deploy.chart import Rendering


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_the_serving_runtime_s_server_understands_its_arguments(root: Path) -> None:
    (runtime,) = objects(root / "deploy/kserve/serving-runtime.yaml")
    (service,) = objects(root / "deploy/kserve/inference-service.yaml")
    (container,) = runtime["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == "serve"
    context = serve.make_context("serve", arguments)
    assert context.params["port"] == container["ports"][0]["containerPort"] == 8080
    assert context.params["model"] == "/mnt/models"
    assert container["image"] == f"tessera:{__version__}-cpu"
    ending = context.params["shutdown_delay"] + context.params["shutdown_timeout"]
    assert service["spec"]["predictor"]["terminationGracePeriodSeconds"] > ending
    for kind in ("startup", "readiness", "liveness"):
        assert container[f"{kind}Probe"]["httpGet"]["path"] in OPEN_PATHS
    formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert service["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]


def test_the_pool_finds_the_chart_s_pods_and_vllms_metrics(root: Path, rendered: Callable[..., Rendering]) -> None:
    pool, route = objects(root / "deploy/inference-gateway/inference-pool.yaml")
    (values,) = objects(root / "deploy/inference-gateway/values.yaml")
    rendering = rendered(**values)
    assert list(rendering.violations) == []
    template = rendering.get("Deployment")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["labels"]["llm-d.ai/inferenceServing"] == "true"
    (container,) = template["spec"]["containers"]
    assert "--vllm-metrics" in container["args"]
    assert pool["spec"]["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]


def test_the_chart_has_the_version_of_core(root: Path) -> None:
    (chart,) = objects(root / "deploy/helm/tessera/Chart.yaml")
    assert chart["appVersion"] == __version__
    assert chart["version"].replace("-dev.", ".dev") == __version__


def test_each_value_is_in_the_schema_and_each_of_the_schema_has_a_default(root: Path) -> None:
    folder = root / "deploy/helm/tessera"
    (values,) = objects(folder / "values.yaml")
    (schema,) = objects(folder / "values.schema.json")
    assert set(values) | {"global"} == set(schema["properties"])
    for name, each in schema["properties"].items():
        if "properties" in each:
            assert set(values[name]) == set(each["properties"]), name
