"""Replaces the pods of the chart's Deployment one by one behind a Service, under load, as Kubernetes does, and counts
the requests that users lose: none may be.

Run: python -m tools.rolling_restart.pods [--clients 8] [--lag 3] [--delay 10]

A pod is a server of this machine with the arguments, probes, hook and grace of the rendered Deployment. When a pod is
deleted, its hook and then SIGTERM come at once, while the Service goes on sending connections to it for --lag seconds:
nodes and load balancers learn of it later. A pod that outlives its grace is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tools.deploy.chart import Rendering, render
from tools.local_server import LIMITED, free_port
from tools.rolling_restart.load import Load

LOAD_SECONDS = 3.0
"""Of load before the first pod is replaced, and after the last."""
CONNECT_SECONDS = 5.0


@dataclass(eq=False)
class Pod:
    """A server that is started, probed and ended as its container's spec says."""

    # of the pod, as the chart renders it
    spec: Mapping[str, Any]
    # in which the container's volumes are
    folder: Path
    port: int = field(default_factory=free_port)
    # what the readiness probe says
    ready: bool = False
    # set when it is deleted
    terminating: bool = False
    # how often the liveness probe failed as often as it may
    liveness_failures: int = 0
    # whether it did not end within its grace
    was_killed: bool = False
    # seconds from its deletion to its end
    ending_seconds: float = 0.0
    _became_ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def container(self) -> Mapping[str, Any]:
        container: Mapping[str, Any] = self.spec["containers"][0]
        return container

    async def start(self) -> None:
        """Returns once the startup and readiness probes have passed. Raises RuntimeError where the first never does."""
        arguments = [*self.container["args"]]
        for flag, value in (("--host", "127.0.0.1"), ("--port", str(self.port))):  # they share this machine
            arguments[arguments.index(flag) + 1] = value
        with (self.folder / f"log-{self.port}").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tessera.cli", *arguments, env=self._environment(), stdout=log, stderr=log
            )
        if not await self._passes(self.container["startupProbe"]):
            log_text = (self.folder / f"log-{self.port}").read_text(encoding="utf-8")
            await self._end(0)
            raise RuntimeError(f"The pod did not start.\n{log_text}")
        self._probes = [
            asyncio.create_task(self._watch_readiness(self.container["readinessProbe"])),
            asyncio.create_task(self._watch_liveness(self.container["livenessProbe"])),
        ]
        await self._became_ready.wait()

    async def delete(self) -> None:
        """Hook, SIGTERM, and SIGKILL where the grace, which counts from the beginning, is over."""
        self.terminating = True
        begun = time.monotonic()
        deadline = begun + float(self.spec["terminationGracePeriodSeconds"])
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            await asyncio.sleep(hook["sleep"]["seconds"])
        await self._end(deadline - time.monotonic())
        self.ending_seconds = time.monotonic() - begun

    async def _end(self, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), max(seconds, 0.1))
        except TimeoutError:
            self.was_killed = True
            self._process.kill()
            await self._process.wait()
        for probe in getattr(self, "_probes", ()):
            probe.cancel()

    def _environment(self) -> dict[str, str]:
        """That of the container, with its volumes in the folder."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        for variable in self.container["env"]:
            value = variable.get("value", "")
            environment[variable["name"]] = f"{self.folder}{value}" if value.startswith("/") else value
        return environment

    async def _passes(self, probe: Mapping[str, Any]) -> bool:
        for _ in range(probe["failureThreshold"]):
            if await self._answers(probe):
                return True
            if self._process.returncode is not None:
                return False
            await asyncio.sleep(probe["periodSeconds"])
        return False

    async def _watch_readiness(self, probe: Mapping[str, Any]) -> None:
        failures = 0
        while True:
            failures = 0 if await self._answers(probe) else failures + 1
            self.ready = failures == 0 or (self.ready and failures < probe["failureThreshold"])
            if self.ready:
                self._became_ready.set()
            await asyncio.sleep(probe["periodSeconds"])

    async def _watch_liveness(self, probe: Mapping[str, Any]) -> None:
        failures = 0
        while not self.terminating:  # the kubelet ends no pod that is ending
            failures = 0 if await self._answers(probe) else failures + 1
            self.liveness_failures += failures == probe["failureThreshold"]
            await asyncio.sleep(probe["periodSeconds"])

    async def _answers(self, probe: Mapping[str, Any]) -> bool:
        """Each probe has a connection of its own, as the kubelet's."""
        url = f"http://127.0.0.1:{self.port}{probe['httpGet']['path']}"
        try:
            async with httpx.AsyncClient(timeout=probe["timeoutSeconds"]) as http:
                return (await http.get(url)).is_success
        except httpx.HTTPError:
            return False


class Service:
    """Passes each connection on to a pod that is ready, in turn; to one that is deleted for `lag` seconds more."""

    def __init__(self, lag: float) -> None:
        self.port = free_port()
        self._lag = lag
        self._endpoints: list[Pod] = []
        self._next = 0

    def add(self, pod: Pod) -> None:
        self._endpoints.append(pod)

    async def remove(self, pod: Pod) -> None:
        await asyncio.sleep(self._lag)
        self._endpoints.remove(pod)

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ready = [pod for pod in self._endpoints if pod.ready or pod.terminating]
            self._next += 1
            port = ready[self._next % len(ready)].port
            async with asyncio.timeout(CONNECT_SECONDS):
                up = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, up[1]), _copy(up[0], writer))
        except (OSError, TimeoutError, IndexError, ZeroDivisionError):
            writer.close()  # the client sees a connection that ends


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass(frozen=True)
class Rollout:
    """What users and the kubelet saw of one."""

    # how many requests ended how
    outcomes: Counter[str]
    # those that were deleted
    pods: Sequence[Pod]

    @property
    def lost(self) -> int:
        return self.outcomes.total() - self.outcomes["answered"]


async def roll(rendering: Rendering, folder: Path, *, clients: int, lag: float) -> Rollout:
    """Replaces each pod: the new one is ready before the old one is deleted, as the strategy of the chart says."""
    deployment = rendering.get("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    service = Service(lag)
    pods = [Pod(spec, folder) for _ in range(deployment["spec"]["replicas"])]
    load = Load(f"http://127.0.0.1:{service.port}")
    server = await service.serve()
    asking: asyncio.Task[None] | None = None
    deleted: list[Pod] = []
    try:
        for pod in pods:
            await pod.start()
            service.add(pod)
        asking = asyncio.create_task(load.run(clients))
        await asyncio.sleep(LOAD_SECONDS)
        for place, old in enumerate(pods):
            new = Pod(spec, folder)
            await new.start()
            service.add(new)
            pods[place] = new
            deleted.append(old)
            await asyncio.gather(old.delete(), service.remove(old))
            print(f"Pod {place + 1} ended after {old.ending_seconds:.1f} s: {dict(load.outcomes)}", flush=True)
        await asyncio.sleep(LOAD_SECONDS)
    finally:
        load.stop()
        if asking is not None:
            await asking
        await asyncio.gather(*(pod.delete() for pod in pods if not pod.terminating), return_exceptions=True)
        server.close()
    return Rollout(load.outcomes, deleted)


def values(delay: int, replicas: int) -> dict[str, Any]:
    """Of the chart: the bundled demo, which answers at once."""
    return {
        "replicas": replicas,
        "args": [*LIMITED, "--threads", "1"],
        "shutdown": {"delaySeconds": delay, "timeoutSeconds": 30},
        "probes": {"readiness": {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2}},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--lag", type=float, default=3.0)
    parser.add_argument("--delay", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollout-") as folder:
        (rendering,) = render([values(options.delay, replicas=2)])
        rollout = asyncio.run(roll(rendering, Path(folder), clients=options.clients, lag=options.lag))
    killed = sum(pod.was_killed for pod in rollout.pods)
    print(f"{rollout.outcomes['answered']} requests answered, {rollout.lost} lost, {killed} pods killed.")
    return int(bool(rollout.lost or killed or rollout.outcomes["answered"] < 100))


if __name__ == "__main__":
    sys.exit(main())
