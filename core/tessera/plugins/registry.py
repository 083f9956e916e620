"""What plugins add besides platforms: a typed table for each kind, filled at start-up, with an owner for each name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tessera.errors import ConfigError, ModelError, PlatformError, TesseraError
from tessera.plugins.paths import path_problem

SHOWN_NAMES = 12


@dataclass(frozen=True)
class Entry:
    """path: dotted, imported by whoever uses it. owner: the distribution it came from."""

    name: str
    path: str
    owner: str


class Table:
    """The names of one kind. level: core's API level of what the paths lead to. unknown: the error for a name that is
    not in it. absent: plugins that are not loaded and might have brought it, in words."""

    def __init__(
        self, kind: str, owner: str, *, level: int, unknown: type[TesseraError], absent: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.level = level
        self.unknown = unknown
        self.absent = absent
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def add(self, name: str, path: str, *, level: int) -> None:
        """level: the API level of the kind that it was written for. Raises PlatformError for a wrong level or path, or
        a taken name."""
        problem = level_problem(self.kind, level, (self.level,)) or path_problem(path)
        if problem is not None:
            raise PlatformError(f"{self.kind} '{name}' of {self.owner}: {problem}.")
        self.take(Entry(name, path, self.owner))

    def take(self, entry: Entry) -> None:
        self.check_free(entry)
        self._entries[entry.name] = entry

    def check_free(self, entry: Entry) -> None:
        """Raises PlatformError, naming both owners, where the name is taken."""
        standing = self._entries.get(entry.name)
        if standing is not None:
            owners = f"{standing.owner} and {entry.owner}"
            raise PlatformError(f"{self.kind} '{entry.name}' comes from {owners}; uninstall one of them.")

    def resolve(self, name: str) -> str:
        """The dotted path of a name. Raises the kind's error with the nearest names."""
        entry = self._entries.get(name)
        if entry is None:
            raise self.unsupported(name)
        return entry.path

    def unsupported(self, name: str, reason: str = "") -> TesseraError:
        """The kind's error for a name, with the nearest names. reason: in words, where there is one."""
        near = get_close_matches(name, self._entries, n=3) or sorted(self._entries)[:SHOWN_NAMES]
        known = f"there is {', '.join(near)}" if near else "there is none"
        lost = f" Plugins that are not loaded: {'; '.join(self.absent)}." if self.absent else ""
        why = f" ({reason})" if reason else ""
        return self.unknown(f"{self.kind} '{name}' is not supported{why}; {known}, and a plugin can add more.{lost}")


class Registry:
    """The tables. models: by architecture, as config.json names it. policies: SchedulingPolicy by --scheduling-policy.
    ops: by the name that models and features bind. features: tessera.platform.Feature by name in --features. owner: the
    distribution that the names are added for."""

    def __init__(self, owner: str, absent: Sequence[str] = ()) -> None:
        self.models = Table("model architecture", owner, level=0, unknown=ModelError, absent=absent)
        self.policies = Table("scheduling policy", owner, level=0, unknown=ConfigError, absent=absent)
        self.ops = Table("op", owner, level=0, unknown=PlatformError, absent=absent)
        self.features = Table("feature", owner, level=0, unknown=ConfigError, absent=absent)

    def tables(self) -> tuple[Table, ...]:
        return self.models, self.policies, self.ops, self.features

    def take_all(self, other: Registry) -> None:
        """Adds another's entries: all of them, or, where one name is taken, none. Raises PlatformError as Table.take
        does."""
        pairs = [(mine, entry) for mine, theirs in zip(self.tables(), other.tables(), strict=True) for entry in theirs]
        for mine, entry in pairs:
            mine.check_free(entry)
        for mine, entry in pairs:
            mine.take(entry)


def level_problem(facet: str, written_for: object, supported: Sequence[int]) -> str | None:
    """Why something written for a level cannot be used, and what to do; None where it can. supported: by core, the
    newest last."""
    if isinstance(written_for, bool) or not isinstance(written_for, int) or written_for < 0:
        return (
            f"the API level of {facet} must be a whole number from 0, not {str(written_for)[:40]}; correct the plugin"
        )
    if written_for > supported[-1]:
        return f"it was written for level {written_for} of {facet}, core has {supported[-1]}; upgrade tessera-llm"
    if written_for not in supported:
        levels = " and ".join(map(str, supported))
        return f"it was written for level {written_for} of {facet}, core supports {levels}; upgrade the plugin"
    return None
