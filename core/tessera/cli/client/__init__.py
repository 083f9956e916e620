"""Where answers come from: a server over HTTP, or an engine of this program's own."""

from __future__ import annotations

from tessera.cli.client.contract import Client, Message, Piece, Prompt, Sampling, Usage

__all__ = ["Client", "Message", "Piece", "Prompt", "Sampling", "Usage"]
