"""Each alert fires on the fault that it is for, and on nothing else: by promtool's unit tests of rules."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.watch.conftest import Prometheus, unknown_metrics

ONE = 'job="tessera",instance="a"'
MODEL = f'{ONE},model_name="m"'
MINUTES = 40


@dataclass(frozen=True)
class Fault:
    """series: values a minute, as promtool writes them. labels: of the alert that fires, besides its own."""

    series: Mapping[str, str]
    labels: Mapping[str, str]


def slow(metric: str, within: str, seconds: str) -> dict[str, str]:
    """60 a minute, of which half are within a bound and half within the next."""
    return {
        f'tessera:{metric}_bucket{{{MODEL},le="{within}"}}': f"0+30x{MINUTES}",
        f'tessera:{metric}_bucket{{{MODEL},le="{seconds}"}}': f"0+60x{MINUTES}",
        f'tessera:{metric}_bucket{{{MODEL},le="+Inf"}}': f"0+60x{MINUTES}",
    }


BY_MODEL = {"job": "tessera", "model_name": "m"}
BY_SERVER = {"job": "tessera", "instance": "a", "model_name": "m"}
FAULTS = {
    "TesseraDown": Fault({f"up{{{ONE}}}": f"0x{MINUTES}"}, {"job": "tessera", "instance": "a"}),
    "TesseraEngineReplaced": Fault({f"tessera:engine_restarts_total{{{MODEL}}}": "0x28 1x12"}, BY_SERVER),
    "TesseraEngineKeepsDying": Fault({f"tessera:engine_restarts_total{{{MODEL}}}": "0x20 1 2 3 4 5x15"}, BY_SERVER),
    "TesseraWorkerReplaced": Fault(
        {
            f"tessera:text_worker_restarts_total{{{MODEL}}}": f"0+1x{MINUTES}",
            f"tessera:media_worker_restarts_total{{{MODEL}}}": f"0x{MINUTES}",
        },
        BY_SERVER,
    ),
    "TesseraQueueLong": Fault({f"tessera:num_requests_waiting{{{MODEL}}}": f"11x{MINUTES}"}, BY_MODEL),
    "TesseraRefuses": Fault(
        {
            f'tessera:http_requests_total{{{ONE},status="200"}}': f"0+97x{MINUTES}",
            f'tessera:http_requests_total{{{ONE},status="503"}}': f"0+3x{MINUTES}",
        },
        {"job": "tessera"},
    ),
    "TesseraFails": Fault({f'tessera:http_requests_total{{{ONE},status="500"}}': f"0+1x{MINUTES}"}, {"job": "tessera"}),
    "TesseraFirstTokenSlow": Fault(slow("time_to_first_token_seconds", "5.0", "7.5"), BY_MODEL),
    "TesseraTokensSlow": Fault(slow("inter_token_latency_seconds", "0.5", "0.75"), BY_MODEL),
    "TesseraCacheFull": Fault(
        {
            f"tessera:num_preemptions_total{{{MODEL}}}": f"0+5x{MINUTES}",
            f"tessera:kv_cache_usage_perc{{{MODEL}}}": f"0.99x{MINUTES}",
        },
        BY_SERVER,
    ),
    "TesseraPreemptsAgain": Fault(slow("request_num_preemptions", "5.0", "10.0"), BY_MODEL),
    "TesseraQueueFull": Fault(
        {f'tessera:admission_rejections_total{{{MODEL},reason="max_num_queued_reqs"}}': f"0+2x{MINUTES}"},
        {"job": "tessera", "reason": "max_num_queued_reqs"},
    ),
    "TesseraModelNotLoaded": Fault({f"tessera:model_load_failures_total{{{MODEL}}}": "0x28 1x12"}, BY_SERVER),
    "TesseraDraftsWrong": Fault(
        {
            f"tessera:spec_decode_num_draft_tokens_total{{{MODEL}}}": f"0+300x{MINUTES}",
            f"tessera:spec_decode_num_accepted_tokens_total{{{MODEL}}}": f"0+20x{MINUTES}",
        },
        BY_MODEL,
    ),
    "TesseraOnReference": Fault(
        {f'tessera:reference_fallbacks_total{{{MODEL},op="gate"}}': f"0+9x{MINUTES}"}, {"instance": "a", "op": "gate"}
    ),
    "TesseraCompilesWhileServing": Fault({f"tessera:kernel_compilations_total{{{MODEL}}}": "0x28 3x12"}, BY_SERVER),
    "TesseraDiskFull": Fault(
        {
            f'tessera:storage_free_bytes{{{ONE},store="batch_store"}}': f"4e9x{MINUTES}",
            f'tessera:storage_size_bytes{{{ONE},store="batch_store"}}': f"1e11x{MINUTES}",
        },
        {"job": "tessera", "instance": "a", "store": "batch_store"},
    ),
    "TesseraCertificateExpires": Fault(  # promtool's clock begins at 0
        {f"tessera:certificate_expiry_timestamp_seconds{{{ONE}}}": f"{13 * 86400}x{MINUTES}"},
        {"job": "tessera", "instance": "a"},
    ),
    "TesseraStoodStill": Fault(
        {f"tessera:event_loop_stands_total{{{ONE}}}": f"0+1x{MINUTES}"}, {"job": "tessera", "instance": "a"}
    ),
}
BESIDE = {"TesseraEngineKeepsDying": ("TesseraEngineReplaced",)}
"""Alerts that fire with another."""
HEALTHY = {
    f"up{{{ONE}}}": f"1x{MINUTES}",
    f'tessera:storage_free_bytes{{{ONE},store="batch_store"}}': f"6e9x{MINUTES}",
    f'tessera:storage_size_bytes{{{ONE},store="batch_store"}}': f"1e11x{MINUTES}",
    f"tessera:certificate_expiry_timestamp_seconds{{{ONE}}}": f"{15 * 86400}x{MINUTES}",
    f"tessera:engine_restarts_total{{{MODEL}}}": f"2x{MINUTES}",
    f"tessera:num_requests_waiting{{{MODEL}}}": f"9x{MINUTES}",
    f'tessera:http_requests_total{{{ONE},status="200"}}': f"0+100x{MINUTES}",
    f'tessera:http_requests_total{{{ONE},status="400"}}': f"0+50x{MINUTES}",
    f'tessera:time_to_first_token_seconds_bucket{{{MODEL},le="1.0"}}': f"0+60x{MINUTES}",
    f'tessera:time_to_first_token_seconds_bucket{{{MODEL},le="+Inf"}}': f"0+60x{MINUTES}",
    f"tessera:num_preemptions_total{{{MODEL}}}": f"0+5x{MINUTES}",
    f"tessera:kv_cache_usage_perc{{{MODEL}}}": f"0.5x{MINUTES}",
    f"tessera:kernel_compilations_total{{{MODEL}}}": f"7x{MINUTES}",
    f'tessera:request_num_preemptions_bucket{{{MODEL},le="1.0"}}': f"0+60x{MINUTES}",
    f'tessera:request_num_preemptions_bucket{{{MODEL},le="+Inf"}}': f"0+60x{MINUTES}",
    f'tessera:admission_rejections_total{{{MODEL},reason="max_num_queued_reqs"}}': f"9x{MINUTES}",
    f"tessera:model_load_failures_total{{{MODEL}}}": f"2x{MINUTES}",
    f"tessera:spec_decode_num_draft_tokens_total{{{MODEL}}}": f"0+300x{MINUTES}",
    f"tessera:spec_decode_num_accepted_tokens_total{{{MODEL}}}": f"0+90x{MINUTES}",
}


@pytest.fixture(scope="module")
def rules(root: Path) -> Path:
    return root / "deploy/prometheus/alerts.yaml"


@pytest.fixture(scope="module")
def alerts(rules: Path) -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def checked(rules: Path, series: Mapping[str, str], expected: list[dict[str, Any]], folder: Path) -> None:
    """expected: what promtool wants to fire at the last minute, and of which alert nothing else may."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": expected,
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}), encoding="utf-8")
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules(rules: Path) -> None:
    done = promtool("check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_fault(alerts: dict[str, dict[str, Any]]) -> None:
    assert set(FAULTS) == set(alerts)


def test_an_alert_uses_what_is_exported(alerts: dict[str, dict[str, Any]], prometheus: Prometheus) -> None:
    for alert in alerts.values():
        assert unknown_metrics(alert["expr"], prometheus.exported) == []
        prometheus.ask(alert["expr"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fires_its_alert_and_no_other(
    name: str, alerts: dict[str, dict[str, Any]], rules: Path, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    expected = []
    for alert, rule in alerts.items():
        fires = alert == name or alert in BESIDE.get(name, ())
        labels = {**fault.labels, **rule["labels"]}
        text = rule["annotations"]
        for label, value in labels.items():
            text = {key: sentence.replace(f"{{{{ $labels.{label} }}}}", value) for key, sentence in text.items()}
        exp = [{"exp_labels": labels, "exp_annotations": text}] if fires else []
        expected.append({"eval_time": f"{MINUTES - 5}m", "alertname": alert, "exp_alerts": exp})
    checked(rules, fault.series, expected, tmp_path)


def test_a_healthy_server_fires_none(alerts: dict[str, dict[str, Any]], rules: Path, tmp_path: Path) -> None:
    expected = [{"eval_time": f"{MINUTES}m", "alertname": alert, "exp_alerts": []} for alert in alerts]
    checked(rules, HEALTHY, expected, tmp_path)
