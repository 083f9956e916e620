"""Logs of the front process: on stderr, a line each."""

from __future__ import annotations

import logging

from tessera.log import set_up_logging

ACCESS = "tessera.server.access"
"""The logger that has a line for each request."""


def set_up_server_logging(level: str, form: str, *, requests: bool) -> None:
    """requests: whether each request gets a line."""
    set_up_logging(level.upper(), form)
    if not requests:
        logging.getLogger(ACCESS).setLevel(logging.WARNING)
