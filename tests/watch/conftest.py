"""Debian's Prometheus, and a server of the demo that it scrapes."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.engine.messages import EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.server.on_demand.app import loading_metrics
from tessera.server.on_demand.hosted_model import ConfiguredModel, HostedEntry, HostedModel
from tessera.server.status import PREFIX, family
from tests.certificates import Authority
from tests.e2e.served import Served, free_port
from tools.local_server import LIMITED
from tools.rolling_restart.load import Load

ROOT = Path(__file__).parents[2]
SCRAPE_SECONDS = 1
LOAD_SECONDS = 12
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}'
FLAGS = (*LIMITED, "--enable-lora", "--speculative-config", DRAFTS)
"""With what some panels show."""
CONFIGURATION = """\
global: {{scrape_interval: {seconds}s, scrape_timeout: {seconds}s, evaluation_interval: {seconds}s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: tessera
    scheme: https
    tls_config: {{ca_file: {authority}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


class Certificate:
    """A server's, which expires in a month unless it is renewed."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self.renew(30)

    def renew(self, days: float) -> None:
        """Writes one that expires in so many days over the one that there is."""
        issued = self._authority.issue("server", days)
        self.flags = ("--ssl-certfile", str(issued.certificate), "--ssl-keyfile", str(issued.key))

    @property
    def authority(self) -> Path:
        return self._authority.identity.certificate

    @property
    def trust(self) -> ssl.SSLContext:
        """Of its clients."""
        return ssl.create_default_context(cafile=str(self.authority))


@dataclass(frozen=True)
class Prometheus:
    """One that has scraped a server."""

    url: str
    # what the server exported last, where it has been read
    exported: str = ""

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=30)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]["result"]


@contextmanager
def scraping(server: Served, certificate: Certificate, folder: Path, rules: Path | None = None) -> Iterator[str]:
    """The URL of a Prometheus. rules: what it evaluates as often as it scrapes."""
    file, port = folder / "prometheus.yaml", free_port()
    configuration = CONFIGURATION.format(
        seconds=SCRAPE_SECONDS, port=server.port, authority=certificate.authority, rules=rules or ""
    )
    file.write_text(configuration, encoding="utf-8")
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        scraper = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            scraper.terminate()
            scraper.wait(30)


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Its server has been under load."""
    folder = tmp_path_factory.mktemp("prometheus")
    certificate = Certificate(folder)
    with (
        Served([*FLAGS, *certificate.flags], folder / "log", tls=certificate.trust) as server,
        scraping(server, certificate, folder) as url,
    ):
        asyncio.run(_load(Load(server.url, trust=certificate.trust)))
        time.sleep(2 * SCRAPE_SECONDS)
        exported = httpx.get(f"{server.url}/metrics", verify=certificate.trust, timeout=30).text
        yield Prometheus(url, exported)


async def _load(load: Load) -> None:
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
    known |= set(re.findall(r"^# TYPE (\S+)", exported, re.MULTILINE))
    used = re.findall(r"tessera:\w+", expression)
    return [name for name in used if name not in known and re.sub(r"_(bucket|count|sum)$", "", name) not in known]
