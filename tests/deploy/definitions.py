"""Objects that Kubernetes has no schema for: fields as the projects define them, in JSON Schema, written by hand from
their types. A field that is not here is an error, also if its project has it: add it then."""

from __future__ import annotations

from typing import Any

STRING = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
FLAG = {"type": "boolean"}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
POD_PART = {"type": "array", "items": {"type": "object"}, "minItems": 1}
"""Of a pod; Kubernetes' own schema is for it."""


def fields(required: str, **properties: Any) -> dict[str, Any]:
    """An object. required: names, separated by spaces."""
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False
    }  # fmt: skip


def several(items: Any, **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, **bounds}


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def defined(spec: dict[str, Any]) -> dict[str, Any]:
    metadata = fields("name", name=STRING, namespace=STRING, labels=LABELS, annotations=LABELS)
    return fields("apiVersion kind metadata spec", apiVersion=STRING, kind=STRING, metadata=metadata, spec=spec)


# KEDA, apis/keda/v1alpha1/scaledobject_types.go and scaletriggers_types.go
SCALING = fields("", stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600})
SCALED_OBJECT = defined(
    fields(
        "scaleTargetRef triggers",
        scaleTargetRef=fields("name", name=STRING, apiVersion=STRING, kind=STRING, envSourceContainerName=STRING),
        pollingInterval=COUNT, initialCooldownPeriod=COUNT, cooldownPeriod=COUNT, idleReplicaCount=COUNT,
        minReplicaCount=COUNT, maxReplicaCount=COUNT,
        fallback=fields(
            "failureThreshold replicas", failureThreshold=COUNT, replicas=COUNT,
            behavior=one_of("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"),
        ),
        advanced=fields(
            "", restoreToOriginalReplicaCount=FLAG,
            horizontalPodAutoscalerConfig=fields("", name=STRING, behavior=fields("", scaleDown=SCALING)),
        ),
        triggers=several(
            fields(
                "type metadata", type=STRING, name=STRING, useCachedMetrics=FLAG,
                metricType=one_of("AverageValue", "Value", "Utilization"),
                # of the trigger "prometheus", all strings
                metadata=fields(
                    "serverAddress query threshold", serverAddress=STRING, query=STRING, threshold=STRING,
                    activationThreshold=STRING, namespace=STRING, ignoreNullValues=one_of("true", "false"),
                ),
            )
        ),
    )
)  # fmt: skip
# Prometheus Operator, pkg/apis/monitoring/v1/servicemonitor_types.go
SERVICE_MONITOR = defined(
    fields(
        "selector endpoints",
        jobLabel=STRING,
        selector=fields("matchLabels", matchLabels=LABELS),
        endpoints=several(
            fields(
                "port", port=STRING, path=STRING, interval={"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"},
                authorization=fields(
                    "credentials", type=STRING, credentials=fields("key", name=STRING, key=STRING, optional=FLAG)
                ),
            )
        ),
    )
)  # fmt: skip
# KServe, pkg/apis/serving/v1alpha1/servingruntime_types.go and v1beta1/predictor.go, model.go
SERVING_RUNTIME = defined(
    fields(
        "containers",
        supportedModelFormats=several(
            fields("name", name=STRING, version=STRING, autoSelect=FLAG, priority={"type": "integer", "minimum": 1})
        ),
        protocolVersions=several(one_of("v1", "v2", "grpc-v1", "grpc-v2")),
        multiModel=FLAG, disabled=FLAG, containers=POD_PART, volumes=POD_PART,
    )
)  # fmt: skip
INFERENCE_SERVICE = defined(
    fields(
        "predictor",
        predictor=fields(
            "", terminationGracePeriodSeconds=COUNT, minReplicas=COUNT, maxReplicas=COUNT,
            model=fields(
                "modelFormat", modelFormat=fields("name", name=STRING, version=STRING), runtime=STRING,
                storageUri=STRING, protocolVersion=STRING,
            ),
        ),
    )
)  # fmt: skip
# Gateway API Inference Extension, api/v1/inferencepool_types.go
INFERENCE_POOL = defined(
    fields(
        "selector targetPorts endpointPickerRef",
        selector=fields("matchLabels", matchLabels=LABELS),
        targetPorts=several(fields("number", number=PORT), maxItems=8),
        appProtocol=one_of("http", "kubernetes.io/h2c"),
        endpointPickerRef=fields(
            "name port", group={"type": "string"}, kind=STRING, name=STRING, port=fields("number", number=PORT),
            failureMode=one_of("FailOpen", "FailClose"),
        ),
    )
)  # fmt: skip
# Gateway API, apis/v1/httproute_types.go
HTTP_ROUTE = defined(
    fields(
        "",
        parentRefs=several(fields("name", name=STRING, namespace=STRING, sectionName=STRING)),
        hostnames=several(STRING),
        rules=several(
            fields(
                "",
                matches=several(
                    fields("", path=fields("", type=one_of("Exact", "PathPrefix", "RegularExpression"), value=STRING))
                ),
                backendRefs=several(
                    fields("name", group={"type": "string"}, kind=STRING, name=STRING, port=PORT, weight=COUNT)
                ),
                timeouts=fields("", request={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
            )
        ),
    )
)  # fmt: skip
DEFINITIONS = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): SERVICE_MONITOR,
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): SERVING_RUNTIME,
    ("serving.kserve.io/v1beta1", "InferenceService"): INFERENCE_SERVICE,
    ("inference.networking.k8s.io/v1", "InferencePool"): INFERENCE_POOL,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): HTTP_ROUTE,
}
"""By apiVersion and kind."""
