"""Which distributions an installation of core needs, and for what."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CORE = "tessera-llm"
DEVELOPMENT = "dev"
SERVING = "serving"


def closure(name: str, extras: Iterable[str] = ()) -> set[str]:
    """The installed distributions that one needs here, itself included."""
    reached: set[tuple[str, str]] = set()
    pending = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while pending:
        current = pending.pop()
        if current in reached:
            continue
        reached.add(current)
        for requirement in _requirements(*current):
            pending += [(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {reached_name for reached_name, _ in reached}


def _requirements(name: str, extra: str) -> list[Requirement]:
    """Of an extra, or of the distribution itself; none where it is not installed."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    parsed = [Requirement(line) for line in lines]
    return [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": extra})]


def needed_for(name: str) -> dict[str, str]:
    """Of each distribution in reach of one: "serving", the extras that bring it, or "dev" if no other does."""
    base = closure(name)
    found = dict.fromkeys(sorted(base), SERVING)
    extras = distribution(name).metadata.get_all("Provides-Extra") or []
    for extra in sorted(extras, key=lambda extra: (extra == DEVELOPMENT, extra)):
        for reached in sorted(closure(name, [extra]) - base):
            if extra != DEVELOPMENT or reached not in found:
                found[reached] = f"{found[reached]}, {extra}" if reached in found else extra
    return found
