"""What of its host a server may run out of: room on the disks of its stores, and the time of its certificate."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tessera.engine.metrics import Metric
from tessera.server.settings import ServerSettings

CERTIFICATE = "certificate_expiry_timestamp_seconds"
_FREE = "Bytes that the server may still write on the disk of a store."
_SIZE = "Bytes of the disk of a store."
_EXPIRES = "When the certificate that new connections get expires, in seconds since 1970."


def host_metrics(settings: ServerSettings) -> Iterator[Metric]:
    """A store that cannot be asked has none."""
    stores = {"batch_store": settings.batch_store or tempfile.gettempdir(), "response_store": settings.response_store}
    for name, path in stores.items():
        with suppress(OSError):
            usage = shutil.disk_usage(_existing(Path(path))) if path else None
            if usage is not None:
                yield Metric("storage_free_bytes", "gauge", _FREE, usage.free, ("store", name))
                yield Metric("storage_size_bytes", "gauge", _SIZE, usage.total, ("store", name))
    if settings.tls is not None and settings.tls.expires_at is not None:
        yield Metric(CERTIFICATE, "gauge", _EXPIRES, settings.tls.expires_at)


def _existing(path: Path) -> Path:
    """A store's file is made when it is first written."""
    return path if path.exists() else path.absolute().parent
