"""Alerts fire on faults of a running server: Prometheus scrapes it and evaluates the rules of deploy/, whose
expressions are as they are there; only their waiting times are shorter. Each test but the last leaves a server behind
that works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.served import Served
from tests.watch.conftest import Certificate, Prometheus, scraping
from tools.local_server import LIMITED

FOR_SECONDS = 3
"""In place of the minutes that the rules wait."""
WITHIN_SECONDS = 40
"""A disk is looked at each 15 s."""
SERVER = (*LIMITED, "--max-num-seqs", "1", "--max-waiting", "12")
CLIENTS = 20
"""More than wait and run."""
DISK_BYTES = 4 * 2**20
ON_A_SMALL_DISK = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'


class Watched:
    """A server with a certificate and a small disk, and the Prometheus that watches it."""

    def __init__(self, server: Served, certificate: Certificate, prometheus: Prometheus) -> None:
        self.server, self.certificate, self.prometheus = server, certificate, prometheus

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.server.url, verify=self.certificate.trust, timeout=60)

    def firing(self) -> set[str]:
        return {sample["metric"]["alertname"] for sample in self.prometheus.ask('ALERTS{alertstate="firing"}')}

    async def until(self, *alerts: str, fire: bool = True) -> None:
        """They all do, or none of them does."""
        async with asyncio.timeout(WITHIN_SECONDS):
            while self.firing() & set(alerts) != (set(alerts) if fire else set()):  # noqa: ASYNC110  # others set it
                await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
def rules(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = yaml.safe_load((root / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))
    for rule in text["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = f"{FOR_SECONDS}s"
    quick = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    quick.write_text(yaml.safe_dump(text), encoding="utf-8")
    return quick


@pytest.fixture(scope="module")
def own_mounts() -> list[str]:
    """What runs a program with mounts of its own; empty where nobody may mount."""
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    tried = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return [] if tried.returncode else command


@pytest.fixture(scope="module")
def watched(rules: Path, own_mounts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    certificate = Certificate(folder)
    store = folder / "batches"
    store.mkdir()
    small_disk = [*own_mounts, "sh", "-c", ON_A_SMALL_DISK, str(store)] if own_mounts else []
    program = [*small_disk, sys.executable, "-m", "tessera.cli"]
    flags = [*SERVER, *certificate.flags, "--batch-store", str(store)]
    with (
        Served(flags, folder / "log", program, tls=certificate.trust) as server,
        scraping(server, certificate, folder, rules) as url,
    ):
        yield Watched(server, certificate, Prometheus(url))


async def test_a_server_without_a_fault_fires_none(watched: Watched) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while True:
            samples = watched.prometheus.ask('count_over_time(up{job="tessera"}[1m])')
            if samples and float(samples[0]["value"][1]) > 2 * FOR_SECONDS:
                break
            await asyncio.sleep(0.2)
    assert watched.firing() == set()


async def test_more_clients_than_may_wait(watched: Watched) -> None:
    async def ask(http: httpx.AsyncClient) -> None:
        while True:
            body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
            answer = await http.post("/v1/completions", json=body)
            await asyncio.sleep(0.0 if answer.is_success else 0.5)

    async with watched.http() as http:
        clients = [asyncio.create_task(ask(http)) for _ in range(CLIENTS)]
        try:
            await watched.until("TesseraQueueLong", "TesseraQueueFull", "TesseraRefuses")
        finally:
            for client in clients:
                client.cancel()
            outcomes = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await watched.until("TesseraQueueLong", fire=False)


async def test_a_killed_engine(watched: Watched) -> None:
    assert "TesseraEngineReplaced" not in watched.firing()
    os.kill(watched.server.engine_pid(), signal.SIGKILL)
    await watched.until("TesseraEngineReplaced")
    assert "TesseraEngineKeepsDying" not in watched.firing()


async def test_a_certificate_that_expires_soon_until_it_is_exchanged(watched: Watched) -> None:
    assert "TesseraCertificateExpires" not in watched.firing()
    watched.certificate.renew(13)
    watched.server.process.send_signal(signal.SIGHUP)
    await watched.until("TesseraCertificateExpires")
    watched.certificate.renew(30)
    watched.server.process.send_signal(signal.SIGHUP)
    await watched.until("TesseraCertificateExpires", fire=False)


async def test_a_server_that_answers_nobody(watched: Watched) -> None:
    assert "TesseraDown" not in watched.firing()
    watched.server.process.send_signal(signal.SIGSTOP)
    try:
        await watched.until("TesseraDown")
    finally:
        watched.server.process.send_signal(signal.SIGCONT)
    await watched.until("TesseraDown", fire=False)


async def test_files_that_fill_the_disk(watched: Watched, own_mounts: list[str]) -> None:
    """Ever smaller ones, until none of a hundredth of it finds room."""
    if not own_mounts:
        pytest.skip("no tmpfs can be mounted here")
    assert "TesseraDiskFull" not in watched.firing()
    size = DISK_BYTES // 2
    async with watched.http() as http:
        while size > DISK_BYTES // 100:
            file = {"file": ("text.txt", b"x" * size, "text/plain")}
            answer = await http.post("/v1/files", data={"purpose": "user_data"}, files=file)
            if not answer.is_success:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "storage_full"
                size //= 2
    await watched.until("TesseraDiskFull")
