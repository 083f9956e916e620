"""A rollout of the chart, with the signals and probes of the kubelet, loses no request."""

from __future__ import annotations

from pathlib import Path

from tools.deploy.chart import render
from tools.rolling_restart.pods import roll, values

LAG_SECONDS = 2.0


async def test_no_request_is_lost_while_pods_are_replaced(tmp_path: Path) -> None:
    (rendering,) = render([values(delay=4, replicas=1)])
    rollout = await roll(rendering, tmp_path, clients=4, lag=LAG_SECONDS)
    assert rollout.lost == 0, dict(rollout.outcomes)
    assert rollout.outcomes["answered"] >= 30
    (pod,) = rollout.pods
    assert not pod.was_killed
    assert pod.liveness_failures == 0
    assert pod.ending_seconds < rendering.get("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


async def test_requests_are_lost_where_a_pod_ends_before_the_service_knows(tmp_path: Path) -> None:
    (rendering,) = render([values(delay=0, replicas=1)])
    rollout = await roll(rendering, tmp_path, clients=4, lag=LAG_SECONDS)
    assert rollout.lost > 0
