"""The dashboards are those of the tool, and every query of theirs finds something on a server under load."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.watch.conftest import Prometheus, unknown_metrics
from tools.deploy.dashboards import BOUNDS, DASHBOARDS, WIDTH, Query, files, grafana

QUERIES = [
    pytest.param(query, id=f"{dashboard.uid}: {panel.title} {number}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
]
VARIABLES = {
    "$__rate_interval": "30s",
    "$model": ".*",
    "$instance": ".*",
    **{f"${name}": values[len(values) // 2] for name, values in BOUNDS.items()},
}


def test_the_files_are_those_of_the_tool() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, "python -m tools.deploy.dashboards --write"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_do_not_overlap_and_variables_are_declared(dashboard) -> None:
    written = grafana(dashboard)
    taken = set()
    for panel in written["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells
    names = {variable["name"] for variable in written["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(written["panels"])))
    assert used <= names | {"__rate_interval"}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_what_is_exported_and_returns_data(query: Query, prometheus: Prometheus) -> None:
    expression = query.expression
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    samples = prometheus.ask(expression)
    assert any(math.isfinite(float(sample["value"][1])) for sample in samples)
    assert unknown_metrics(expression, prometheus.exported) == []
    labels = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    assert labels <= set(samples[0]["metric"]) or "or vector(0)" in expression


def test_the_bounds_to_choose_from_are_those_of_the_histograms(root: Path, prometheus: Prometheus) -> None:
    for name, metric in (
        ("first_token", "time_to_first_token_seconds"),
        ("each_token", "request_time_per_output_token_seconds"),
    ):
        for bound in BOUNDS[name]:
            assert f'tessera:{metric}_bucket{{model_name="tessera-demo",le="{bound}"}}' in prometheus.exported
