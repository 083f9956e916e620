"""What a result says of an engine that was started for it."""

from __future__ import annotations

from typing import Any

from tessera.cli.client.local import LocalClient


def facts_of(client: LocalClient) -> dict[str, Any]:
    info = client.info
    return {
        "model": client.model,
        "platform": info.platform,
        "device": info.device,
        "dtype": info.dtype,
        "fallback_ops": list(info.fallback_ops),
    }
