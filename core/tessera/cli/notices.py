"""What a user should know before anything slow begins, though nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from tessera.cli.address import is_loopback
from tessera.config.environment import VARIABLES


def warnings_before(host: str, *, guarded: bool, unknown: Sequence[str]) -> Iterator[str]:
    """One line each. guarded: an API key is asked for. unknown: names of environment variables."""
    if not guarded and not is_loopback(host):
        yield f"everyone who reaches {host} can use this server; --api-key changes that"
    for name in unknown:
        yield unknown_variable(name)


def unknown_variable(name: str) -> str:
    near = get_close_matches(name, VARIABLES, n=1)
    hint = f"did it mean {near[0]}?" if near else f"there is {', '.join(VARIABLES)}"
    return f"the environment variable {name} means nothing to Tessera; {hint}"
