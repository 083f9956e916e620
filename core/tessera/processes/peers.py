"""Processes of other hosts: the secret that they share, and connections that notice when they are gone."""

from __future__ import annotations

import socket
from pathlib import Path

from tessera.errors import ConfigError

MAX_KEY_BYTES = 4096
# A peer that has gone without a word, or whose cable was cut, is noticed within 20 seconds.
IDLE_SECONDS, PROBE_SECONDS, PROBES = 5, 5, 3
_OPTIONS = {"TCP_KEEPIDLE": IDLE_SECONDS, "TCP_KEEPINTVL": PROBE_SECONDS, "TCP_KEEPCNT": PROBES,
            "TCP_USER_TIMEOUT": 1000 * (IDLE_SECONDS + PROBES * PROBE_SECONDS)}  # fmt: skip


def read_key(file: str) -> bytes:
    """The cluster's key; none without a file. Raises ConfigError."""
    if not file:
        return b""
    try:
        key = Path(file).expanduser().read_bytes()[: MAX_KEY_BYTES + 1].strip()
    except OSError as error:
        raise ConfigError(f"--cluster-key-file '{file}' cannot be read ({error.strerror}).") from error
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ConfigError(f"--cluster-key-file '{file}' must hold 1 to {MAX_KEY_BYTES} bytes.")
    return key


def keep_alive(link: socket.socket) -> None:
    """For a connection that may be silent for long. One within this host ends with either process."""
    link.settimeout(None)
    if link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
