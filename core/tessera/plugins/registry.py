"""What plugins add besides platforms: a typed table for each kind, filled at start-up, recording each name's owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tessera.errors import ConfigError, ModelError, PlatformError, TesseraError
from tessera.plugins.paths import path_problem

SHOWN_NAMES = 12


@dataclass(frozen=True)
class RegistryEntry:
    """path: a dotted path, imported when it is used. owner: the distribution that added it."""

    name: str
    path: str
    owner: str


class Table:
    """The names of one kind. level: core's API level for the objects at the paths. unknown: the error class for an
    unknown name. absent: descriptions of plugins that were not loaded, and might have added it."""

    def __init__(
        self, kind: str, owner: str, *, level: int, unknown: type[TesseraError], absent: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.level = level
        self.unknown = unknown
        self.absent = absent
        self._entries: dict[str, RegistryEntry] = {}

    def __iter__(self) -> Iterator[RegistryEntry]:
        return iter(self._entries.values())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def add(self, name: str, path: str, *, level: int) -> None:
        """level: the API level of the kind it was written for. Raises PlatformError for a wrong level or path, or a
        name that is already used."""
        problem = level_problem(self.kind, level, (self.level,)) or path_problem(path)
        if problem is not None:
            raise PlatformError(f"{self.kind} '{name}' of {self.owner}: {problem}.")
        self.take(RegistryEntry(name, path, self.owner))

    def take(self, entry: RegistryEntry) -> None:
        self.check_free(entry)
        self._entries[entry.name] = entry

    def check_free(self, entry: RegistryEntry) -> None:
        """Raises PlatformError with both owners if the name is already used."""
        standing = self._entries.get(entry.name)
        if standing is not None:
            owners = f"{standing.owner} and {entry.owner}"
            raise PlatformError(f"{self.kind} '{entry.name}' comes from {owners}; uninstall one of them.")

    def resolve(self, name: str) -> str:
        """The dotted path of a name. Raises the kind's error, with similar names, if it is unknown."""
        entry = self._entries.get(name)
        if entry is None:
            raise self.unsupported(name)
        return entry.path

    def unsupported(self, name: str, reason: str = "") -> TesseraError:
        """The kind's error for a name, with similar names. reason: as text, if known."""
        near = get_close_matches(name, self._entries, n=3) or sorted(self._entries)[:SHOWN_NAMES]
        known = f"there is {', '.join(near)}" if near else "there is none"
        lost = f" Plugins that are not loaded: {'; '.join(self.absent)}." if self.absent else ""
        why = f" ({reason})" if reason else ""
        return self.unknown(f"{self.kind} '{name}' is not supported{why}; {known}, and a plugin can add more.{lost}")


class Registry:
    """All tables."""

    def __init__(self, owner: str, absent: Sequence[str] = ()) -> None:
        """owner: the distribution that adds the names."""
        # By architecture, as in config.json.
        self.models = Table("model architecture", owner, level=0, unknown=ModelError, absent=absent)
        # SchedulingPolicy, by --scheduling-policy.
        self.policies = Table("scheduling policy", owner, level=0, unknown=ConfigError, absent=absent)
        # By the name that models and features bind.
        self.ops = Table("op", owner, level=0, unknown=PlatformError, absent=absent)
        # Functions that return a WeightFormat, by the quant_method of config.json's quantization_config.
        self.formats = Table("quantization format", owner, level=0, unknown=ModelError, absent=absent)
        # tessera.platform.Feature, by the name in --features.
        self.features = Table("feature", owner, level=0, unknown=ConfigError, absent=absent)
        # tessera.platform.KVConnector, by kv_connector in --kv-transfer-config.
        self.kv_connectors = Table("KV connector", owner, level=0, unknown=ConfigError, absent=absent)

    def tables(self) -> tuple[Table, ...]:
        return self.models, self.policies, self.ops, self.formats, self.features, self.kv_connectors

    def take_all(self, other: Registry) -> None:
        """Adds all of another registry's entries, or none if any name is already used. Raises PlatformError as
        Table.take does."""
        pairs = [(mine, entry) for mine, theirs in zip(self.tables(), other.tables(), strict=True) for entry in theirs]
        for mine, entry in pairs:
            mine.check_free(entry)
        for mine, entry in pairs:
            mine.take(entry)


def level_problem(facet: str, written_for: object, supported: Sequence[int]) -> str | None:
    """Why something written for a level cannot be used, and what to do; None if it can. supported: core's levels, the
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
