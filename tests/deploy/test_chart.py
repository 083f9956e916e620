"""What the chart makes of values: objects that Kubernetes takes, and a pod that starts, is probed and ends as the
server wants it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tessera._version import __version__
from tessera.cli.serve import serve
from tessera.engine.metrics import EngineMetrics
from tessera.server.security import OPEN_PATHS
from tests.deploy.value_sets import VALUE_SETS
from tools.deploy.chart import ChartError, Rendering

RESOURCES = {
    "cuda": "nvidia.com/gpu",
    "rocm": "amd.com/gpu",
    "xpu": "gpu.intel.com/xe",
    "tpu": "google.com/tpu",
    "gaudi": "habana.ai/gaudi",
    "ascend": "huawei.com/Ascend910",
    "neuron": "aws.amazon.com/neuron",
    "spyre": "ibm.com/spyre_pf",
}
ENGINE_ENDS_SECONDS = 15
ALWAYS = {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"}


def pod(rendering: Rendering) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = rendering.get("Deployment")["spec"]["template"]["spec"]
    return spec


def container(rendering: Rendering) -> Mapping[str, Any]:
    (only,) = pod(rendering)["containers"]
    return only


def value_of(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_kubernetes_schemas_and_helms_linter_have_nothing_against_the_objects(
    renderings: dict[str, Rendering], name: str
) -> None:
    assert list(renderings[name].violations) == []


def test_a_field_that_kubernetes_does_not_know_is_a_violation(rendered: Callable[..., Rendering]) -> None:
    violations = rendered(affinity={"podAfinity": {}}).violations
    assert violations
    assert all("podAfinity" in line for line in violations)


def test_objects_are_those_that_the_values_ask_for(renderings: dict[str, Rendering]) -> None:
    kinds = {name: rendering.kinds for name, rendering in renderings.items()}
    assert kinds["the bundled demo"] == ALWAYS
    assert kinds["a model of the hub with a token"] == ALWAYS | {"PersistentVolumeClaim"}
    assert kinds["keys made by the chart"] == ALWAYS | {"Secret"}
    assert kinds["keys of a secret, watched"] == ALWAYS | {"ServiceMonitor"}
    assert kinds["scaled by the autoscaler of Kubernetes"] == ALWAYS | {"HorizontalPodAutoscaler"}
    assert kinds["scaled by KEDA"] == ALWAYS | {"ScaledObject", "ServiceMonitor"}
    assert kinds["behind a policy"] == ALWAYS | {"NetworkPolicy", "ServiceMonitor"}
    assert kinds["an image of one's own"] == {"Deployment", "Service"}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_server_understands_its_arguments(renderings: dict[str, Rendering], name: str) -> None:
    command, *arguments = container(renderings[name])["args"]
    assert command == "serve"
    context = serve.make_context("serve", list(arguments))
    assert (context.params["model"] or "") == VALUE_SETS[name].get("model", "")
    assert context.params["port"] == container(renderings[name])["ports"][0]["containerPort"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_probes_ask_paths_that_need_no_key(renderings: dict[str, Rendering], name: str) -> None:
    probes = {
        kind: container(renderings[name])[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
    }
    assert {probe["path"] for probe in probes.values()} <= OPEN_PATHS
    assert probes["liveness"]["path"] == "/livez"
    assert probes["startup"]["path"] == probes["readiness"]["path"] == "/readyz"


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_grace_is_longer_than_all_that_a_server_waits_for(renderings: dict[str, Rendering], name: str) -> None:
    shutdown = {"preStopSeconds": 0, "delaySeconds": 10, "timeoutSeconds": 45} | VALUE_SETS[name].get("shutdown", {})
    server, arguments = container(renderings[name]), container(renderings[name])["args"]
    assert value_of(arguments, "--shutdown-delay") == str(shutdown["delaySeconds"])
    assert value_of(arguments, "--shutdown-timeout") == str(shutdown["timeoutSeconds"])
    assert pod(renderings[name])["terminationGracePeriodSeconds"] == sum(shutdown.values()) + ENGINE_ENDS_SECONDS
    hook = server.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert hook == shutdown["preStopSeconds"]


def test_a_start_may_take_what_the_values_say(renderings: dict[str, Rendering]) -> None:
    for name, seconds in (("the bundled demo", 600), ("a load balancer that learns late", 3600)):
        probe = container(renderings[name])["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == seconds
        assert renderings[name].get("Deployment")["spec"]["progressDeadlineSeconds"] > seconds


@pytest.mark.parametrize("platform", RESOURCES)
def test_a_platform_decides_on_resource_and_image(rendered: Callable[..., Rendering], platform: str) -> None:
    server = container(rendered(platform=platform, parallel={"tensor": 2, "pipeline": 3}))
    for kind in ("requests", "limits"):
        assert server["resources"][kind][RESOURCES[platform]] == 6
    assert server["resources"]["limits"]["memory"] == "8Gi"
    assert server["image"] == f"tessera:{__version__}-{platform}"
    assert value_of(server["args"], "--platform") == platform
    assert value_of(server["args"], "--tensor-parallel-size") == "2"
    assert value_of(server["args"], "--pipeline-parallel-size") == "3"


def test_a_cpu_has_no_device_to_ask_for(renderings: dict[str, Rendering]) -> None:
    assert set(container(renderings["the bundled demo"])["resources"]["limits"]) == {"memory"}


def test_a_plugin_s_own_name_for_a_device_goes_first(rendered: Callable[..., Rendering]) -> None:
    limits = container(rendered(platform="cuda", deviceResource="nvidia.com/mig-1g.10gb"))["resources"]["limits"]
    assert limits == {"memory": "8Gi", "nvidia.com/mig-1g.10gb": 1}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_container_has_no_rights_and_writes_only_to_volumes(renderings: dict[str, Rendering], name: str) -> None:
    spec, server = pod(renderings[name]), container(renderings[name])
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    folders = tuple(mount["mountPath"] for mount in server["volumeMounts"])
    values = [variable.get("value", "") for variable in server["env"]]
    assert all(value.startswith(folders) for value in values if value.startswith("/"))
    assert {volume["name"] for volume in spec["volumes"]} == {mount["name"] for mount in server["volumeMounts"]}


def test_keys_and_tokens_are_in_secrets_alone(renderings: dict[str, Rendering]) -> None:
    rendering = renderings["keys made by the chart"]
    secrets = [each for each in rendering.objects if each["kind"] == "Secret"]
    assert [each["stringData"] for each in secrets] == [
        {"api-keys": "first-key\nsecond-key\n"},
        {"token": "hf_token"},
    ]
    others = json.dumps([each for each in rendering.objects if each["kind"] != "Secret"])
    assert not any(secret in others for secret in ("first-key", "second-key", "hf_token"))
    volumes = {volume["name"]: volume for volume in pod(rendering)["volumes"]}
    assert volumes["keys"]["secret"]["secretName"] == secrets[0]["metadata"]["name"]
    token = next(variable for variable in container(rendering)["env"] if variable["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": secrets[1]["metadata"]["name"], "key": "token"}
    mount = next(mount for mount in container(rendering)["volumeMounts"] if mount["name"] == "keys")
    assert value_of(container(rendering)["args"], "--api-key-file") == f"{mount['mountPath']}/api-keys"


def test_servers_start_again_where_the_keys_of_the_chart_change(rendered: Callable[..., Rendering]) -> None:
    def annotations(*keys: str) -> Any:
        template = rendered(apiKeys={"values": list(keys)}).get("Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]

    assert annotations("one") == annotations("one") != annotations("two")


def test_the_number_of_servers_is_the_autoscaler_s_where_there_is_one(renderings: dict[str, Rendering]) -> None:
    exported = {metric.name for metric in EngineMetrics(512).read()}
    assert "num_requests_waiting" in exported
    horizontal, keda = renderings["scaled by the autoscaler of Kubernetes"], renderings["scaled by KEDA"]
    for rendering in (horizontal, keda):
        assert "replicas" not in rendering.get("Deployment")["spec"]
    scaler = horizontal.get("HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 8)
    assert scaler["metrics"][0]["pods"]["target"] == {"type": "AverageValue", "averageValue": "2"}
    scaled = keda.get("ScaledObject")["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["query"] == 'sum(tessera:num_requests_waiting{namespace="llm", service="tessera"})'
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert scaled["minReplicaCount"] == scaled["fallback"]["replicas"] == 2


def test_prometheus_shows_a_key_where_clients_need_one(renderings: dict[str, Rendering]) -> None:
    (endpoint,) = renderings["keys of a secret, watched"].get("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "scraper", "key": "token"}}
    (endpoint,) = renderings["scaled by KEDA"].get("ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_a_policy_lets_in_who_is_named_and_prometheus(renderings: dict[str, Rendering]) -> None:
    policy = renderings["behind a policy"].get("NetworkPolicy")["spec"]
    (ingress,) = policy["ingress"]
    assert ingress["from"] == [
        {"namespaceSelector": {"matchLabels": {"gateway": "true"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    ports = [port["port"] for rule in policy["egress"] for port in rule.get("ports", ())]
    assert ports == [53, 53]  # offline: no HTTPS


def test_selectors_find_the_pods(renderings: dict[str, Rendering]) -> None:
    for name in ("behind a policy", "an image of one's own"):
        labels = renderings[name].get("Deployment")["spec"]["template"]["metadata"]["labels"].items()
        selector = renderings[name].get("Service")["spec"]["selector"].items()
        assert selector <= labels
        assert {value for _, value in selector} == {"tessera"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"platfrom": "cuda"}, "platfrom"),
        ({"platform": "gpu"}, "platform"),
        ({"parallel": {"tensor": 0}}, "tensor"),
        ({"service": {"port": 70000}}, "port"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"apiKeys": {"values": ["two words"]}}, "apiKeys"),
        ({"autoscaling": {"kind": "keda", "minReplicas": 0}}, "minReplicas"),
        ({"apiKeys": {"existingSecret": "clients"}, "serviceMonitor": {"enabled": True}}, "apiKeySecret.name"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(
    rendered: Callable[..., Rendering], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ChartError, match=words):
        rendered(**values)
