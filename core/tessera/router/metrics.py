"""The metrics of several servers as those of one: sums, and means of what is a share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tessera.router.servers import RoutedServer

MAX_BYTES = 4 * 2**20
ANSWER_SECONDS = 5.0
_SHARES = ("_perc",)
_CONSTANTS = ("_info",)
_PREFIX = "tessera:router_"

Sample = tuple[str, tuple[tuple[str, str], ...]]


async def merged_metrics(client: httpx.AsyncClient, servers: Sequence[RoutedServer], key: bytes | None) -> str:
    """key: the Authorization header of who asks, which servers may want to see. A server that does not answer is left
    out."""
    headers = {} if key is None else {b"authorization": key}

    async def read(server: RoutedServer) -> str:
        try:
            answer = await client.get(f"{server.url}/metrics", headers=headers, timeout=ANSWER_SECONDS)
        except httpx.HTTPError:
            return ""
        is_whole = answer.status_code == httpx.codes.OK and len(answer.content) <= MAX_BYTES
        return answer.text if is_whole else ""

    return merge(await asyncio.gather(*(read(server) for server in servers if server.is_ready)))


def merge(pages: Sequence[str]) -> str:
    """One page of metrics for several."""
    heads: dict[str, tuple[str, str]] = {}
    samples: dict[str, dict[Sample, list[float]]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            heads.setdefault(family.name, (family.type, family.documentation))
            values = samples.setdefault(family.name, {})
            for sample in family.samples:
                values.setdefault((sample.name, tuple(sample.labels.items())), []).append(sample.value)
    return "".join(line for name, (kind, words) in heads.items() for line in _family(name, kind, words, samples[name]))


def _family(name: str, kind: str, words: str, samples: dict[Sample, list[float]]) -> Iterator[str]:
    shown = f"{name}_total" if kind == "counter" and f"{name}_total" in {one for one, _ in samples} else name
    yield f"# HELP {shown} {words}\n# TYPE {shown} {kind}\n"
    for (sample, labels), values in samples.items():
        value = max(values) if name.endswith(_CONSTANTS) else sum(values)
        value = value / len(values) if name.endswith(_SHARES) else value
        yield f"{sample}{_labels(labels)} {value}\n"


def own_lines(servers: Sequence[RoutedServer], num_retries: int) -> str:
    """What the router itself counts."""
    lines = [f"# TYPE {_PREFIX}retries_total counter\n{_PREFIX}retries_total {num_retries}\n"]
    for name, kind in (
        ("requests_total", "counter"),
        ("failures_total", "counter"),
        ("in_progress", "gauge"),
        ("ready", "gauge"),
    ):
        lines.append(f"# TYPE {_PREFIX}{name} {kind}\n")
        for server in servers:
            values = {
                "requests_total": server.num_requests,
                "failures_total": server.num_failures,
                "in_progress": server.load,
                "ready": int(server.is_ready),
            }
            lines.append(f"{_PREFIX}{name}{_labels((('server', server.url),))} {values[name]}\n")
    return "".join(lines)


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""
