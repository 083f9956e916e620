"""What was chosen and why each other was not, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.cli.columns import columns
from tessera.cli.platforms import describe, survey, table
from tessera.platform.explain import Explained

_HEAD = ("WHAT", "WHERE", "CHOSEN", "WHY NOT THE OTHERS")


def explained_platform(name: str | None) -> tuple[str, dict[str, int], str]:
    """The dotted path of the platform that `--platform name` leads to, the API levels that it was written for, and a
    table that says why it and no other. Raises PlatformError."""
    if name is not None and ":" in name:
        return name, {}, f"Platform {name}: --platform gives its path."
    candidates, chosen, problem = survey(name=name)
    if problem is not None:
        raise problem
    assert chosen is not None
    text = table([describe(one, chosen, name) for one in candidates], explain=True)
    return chosen.platform, dict(chosen.levels), text


def choices_table(platform: str, choices: Sequence[Explained]) -> str:
    """Who does each part of a model on a platform."""
    if not choices:
        return f"Platform '{platform}' runs models its own way and does not say who does what."
    return "\n".join(columns([_HEAD, *map(_cells, choices)]))


def _cells(one: Explained) -> tuple[str, str, str, str]:
    why = "; ".join(f"{name}: {reason}" for name, reason in one.others)
    return one.what, one.place or "-", one.chosen, why or "-"
