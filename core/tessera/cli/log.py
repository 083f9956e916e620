"""Logs of the front process: on stderr, a line each."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ACCESS = "tessera.server.access"
"""The logger that has a line for each request."""


def set_up_logging(level: str, *, requests: bool) -> None:
    """level: of Tessera's own messages; libraries write from warnings on. requests: whether each request gets a
    line."""
    logging.basicConfig(level=logging.WARNING, format=FORMAT)
    logging.getLogger("tessera").setLevel(level.upper())
    if not requests:
        logging.getLogger(ACCESS).setLevel(logging.WARNING)
