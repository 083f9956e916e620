"""What of its host a server may run out of: room on the disks of its stores, and the time of its certificate."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tessera.engine.metrics import Metric
from tessera.server.settings import ServerSettings

SECONDS = 15.0
"""Between two looks at the disks."""
_FREE = "Bytes that the server may still write on the disk of a store."
_SIZE = "Bytes of the disk of a store."
_EXPIRES = "When the certificate that new connections get expires, in seconds since 1970."


class DiskWatch:
    """Looks at the disks of stores on a thread of its own: a volume of the network that does not answer holds up
    nothing else, the end of the process included."""

    def __init__(self) -> None:
        # Bytes by store: free, and in total. A store that cannot be asked has none.
        self.sizes: Mapping[str, tuple[int, int]] = {}
        self._stopped = threading.Event()

    def start(self, settings: ServerSettings) -> None:
        threading.Thread(target=self._watch, args=(settings,), name="disk-watch", daemon=True).start()

    async def stop(self) -> None:
        self._stopped.set()

    def _watch(self, settings: ServerSettings) -> None:
        self.sizes = disk_sizes(settings)
        while not self._stopped.wait(SECONDS):
            self.sizes = disk_sizes(settings)


def disk_sizes(settings: ServerSettings) -> Mapping[str, tuple[int, int]]:
    """DiskWatch.sizes."""
    stores = {"batch_store": settings.batch_store or tempfile.gettempdir(), "response_store": settings.response_store}
    sizes = {}
    for name, path in stores.items():
        with suppress(OSError):
            if path:
                usage = shutil.disk_usage(_existing(Path(path)))
                sizes[name] = usage.free, usage.total
    return sizes


def host_metrics(disks: DiskWatch, settings: ServerSettings) -> Iterator[Metric]:
    for name, (free, size) in disks.sizes.items():
        yield Metric("storage_free_bytes", "gauge", _FREE, free, ("store", name))
        yield Metric("storage_size_bytes", "gauge", _SIZE, size, ("store", name))
    if settings.tls is not None and settings.tls.expires_at is not None:
        yield Metric("certificate_expiry_timestamp_seconds", "gauge", _EXPIRES, settings.tls.expires_at)


def _existing(path: Path) -> Path:
    """A store's file is made when it is first written."""
    return path if path.exists() else path.absolute().parent
