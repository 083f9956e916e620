"""Who runs an engine's steps, by dotted path: what it names holds the device's libraries and is loaded in the engine's
process alone."""

from __future__ import annotations

IN_PROCESS = "tessera.executor.in_process:InProcessExecutor"
WORKERS = "tessera.executor.workers:WorkersExecutor"


def executor_path(num_workers: int) -> str:
    """Of an engine with so many workers."""
    return IN_PROCESS if num_workers == 1 else WORKERS
