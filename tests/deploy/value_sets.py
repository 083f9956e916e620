"""Values of the chart as operators would write them, by what they are for."""

from __future__ import annotations

from typing import Any

VALUE_SETS: dict[str, dict[str, Any]] = {
    "the bundled demo": {},
    "a model of the hub with a token": {
        "model": "ORGANIZATION/NAME", "servedModelNames": ["assistant", "gpt-4o"],
        "hub": {"existingSecret": "hub-token"},
        "models": {"create": True, "size": "50Gi", "accessModes": ["ReadWriteMany"], "storageClassName": "shared"},
        "replicas": 2,
    },
    "a folder of a claim, offline": {
        "model": "/models/assistant", "hub": {"offline": True}, "models": {"existingClaim": "models", "readOnly": True},
        "cache": {"existingClaim": "cache"},
    },
    "keys made by the chart": {"apiKeys": {"values": ["first-key", "second-key"]}, "hub": {"token": "hf_token"}},
    "keys of a secret, watched": {
        "apiKeys": {"existingSecret": "clients"},
        "serviceMonitor": {
            "enabled": True, "labels": {"release": "prometheus"}, "apiKeySecret": {"name": "scraper", "key": "token"},
        },
    },
    "eight GPUs": {
        "platform": "cuda", "parallel": {"tensor": 4, "pipeline": 2}, "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia", "priorityClassName": "serving", "sharedMemory": {"sizeLimit": "16Gi"},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    },
    "GPUs of another maker": {
        "platform": "rocm", "podSecurityContext": {"supplementalGroups": [44, 109]},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "tessera"}},
            }
        ],
    },
    "a chip with a scheduler of its own": {"platform": "spyre", "schedulerName": "spyre-scheduler"},
    "scaled by the autoscaler of Kubernetes": {"autoscaling": {"kind": "hpa", "maxReplicas": 8, "waitingRequests": 2}},
    "scaled by KEDA": {
        "autoscaling": {"kind": "keda", "minReplicas": 2, "keda": {"prometheusAddress": "http://prometheus:9090"}},
        "serviceMonitor": {"enabled": True},
    },
    "behind a policy": {
        "networkPolicy": {
            "enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"gateway": "true"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
        "serviceMonitor": {"enabled": True}, "hub": {"offline": True},
    },
    "a load balancer that learns late": {
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.com/scheme": "internal"}},
        "shutdown": {"preStopSeconds": 20, "delaySeconds": 5, "timeoutSeconds": 120},
        "probes": {"startupSeconds": 3600},
    },
    "an image of one's own": {
        "image": {
            "repository": "registry.example.com/llm/tessera", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}], "fullnameOverride": "assistant",
        "serviceAccount": {"create": False, "name": "serving"}, "podDisruptionBudget": {"enabled": False},
    },
    "more of everything that a container has": {
        "args": ["--max-model-len", "8K", "--enable-lora"], "env": [{"name": "OMP_NUM_THREADS", "value": "8"}],
        "podLabels": {"team": "search"}, "podAnnotations": {"example.com/owner": "search"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "resources": {"requests": {"cpu": "8", "memory": "32Gi"}, "limits": {"memory": "64Gi"}}, "vllmMetrics": True,
    },
}  # fmt: skip
