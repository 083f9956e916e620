"""Debian's Prometheus, and a server of the demo that it scrapes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.engine.messages import EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.server.host_metrics import CERTIFICATE
from tessera.server.on_demand.app import loading_metrics
from tessera.server.on_demand.hosted_model import ConfiguredModel, HostedEntry, HostedModel
from tessera.server.status import PREFIX, family
from tools.local_server import LIMITED, TESSERA, free_port, started
from tools.rolling_restart.load import Load

ROOT = Path(__file__).parents[2]
SCRAPE_SECONDS = 1
LOAD_SECONDS = 12
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}'
FLAGS = (*LIMITED, "--enable-lora", "--speculative-config", DRAFTS)
"""With what some panels show."""
CONFIGURATION = """\
global: {{scrape_interval: {seconds}s, evaluation_interval: {seconds}s}}
scrape_configs:
  - job_name: tessera
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@dataclass(frozen=True)
class Prometheus:
    """One that has scraped a server under load."""

    url: str
    # what the server exported last
    exported: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=30)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]["result"]


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port, own = tmp_path_factory.mktemp("prometheus"), free_port(), free_port()
    file = folder / "prometheus.yaml"
    file.write_text(CONFIGURATION.format(seconds=SCRAPE_SECONDS, port=port), encoding="utf-8")
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with started([*TESSERA, "--port", str(port), *FLAGS], port), (folder / "log").open("wb") as log:
        scraper = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{own}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            asyncio.run(_load(f"http://127.0.0.1:{port}"))
            time.sleep(2 * SCRAPE_SECONDS)
            exported = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
            yield Prometheus(f"http://127.0.0.1:{own}", exported)
        finally:
            scraper.terminate()
            scraper.wait(30)


async def _load(url: str) -> None:
    load = Load(url)
    running = asyncio.create_task(load.run(4))
    await asyncio.sleep(LOAD_SECONDS)
    load.stop()
    await running
    assert load.outcomes["answered"] >= 10


async def _configure() -> ConfiguredModel:
    raise AssertionError("it is never loaded")


def unknown_metrics(expression: str, exported: str) -> list[str]:
    """Those of a query that the server never exports; some it does only once there is something to count."""
    metrics = EngineMetrics(512)
    metrics.stats = EngineStats(fallbacks={"gate": 1})
    loading = loading_metrics([HostedModel(HostedEntry("m", _configure), 0.0, bool)])
    known = {f"{PREFIX}{family(metric)}" for metric in (*metrics.read(), *loading)}
    known.add(f"{PREFIX}{CERTIFICATE}")  # of a server with one
    known |= set(re.findall(r"^# TYPE (\S+)", exported, re.MULTILINE))
    used = re.findall(r"tessera:\w+", expression)
    return [name for name in used if name not in known and re.sub(r"_(bucket|count|sum)$", "", name) not in known]
