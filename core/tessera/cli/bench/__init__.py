"""`tessera bench`: what a model or a server does in how much time."""

from __future__ import annotations

from types import MappingProxyType

from tessera.cli.lazy_group import LazyGroup
from tessera.cli.verbosity import verbose_option

bench = LazyGroup(
    "bench",
    table=MappingProxyType(
        {
            "latency": ("tessera.cli.bench.latency:latency", "Time one batch from its start to its last token."),
            "throughput": ("tessera.cli.bench.throughput:throughput", "Time many requests given to an engine at once."),
            "serve": ("tessera.cli.bench.serve:serve", "Time requests that come to a running server one by one."),
        }
    ),
    help="Measure latency, throughput, or a running server. Prompts are random token ids; answers have a fixed length.",
    params=[verbose_option()],
)
