"""`tessera bench`: measures the speed of a model or a server."""

from __future__ import annotations

from types import MappingProxyType

from tessera.cli.commands import LazyGroup, verbose_option

bench = LazyGroup(
    "bench",
    table=MappingProxyType(
        {
            "latency": ("tessera.cli.bench.commands:latency", "Measure the time of one batch."),
            "throughput": ("tessera.cli.bench.commands:throughput", "Measure an engine given all requests at once."),
            "embed": ("tessera.cli.bench.embed:embed", "Measure how fast texts become vectors, here or on a server."),
            "serve": ("tessera.cli.bench.commands:serve", "Measure a running server."),
        }
    ),
    help="Measure latency, throughput, or a running server. Prompts are random token ids; answers have a fixed length.",
    params=[verbose_option()],
)
