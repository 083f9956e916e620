"""Under which licences the components of an installation are, and which of them are not allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from packaging.utils import canonicalize_name

_OPERATORS = re.compile(r" AND | OR |[()]")


@dataclass(frozen=True)
class Policy:
    """licences.toml."""

    # SPDX identifiers, and ends of classifiers
    allowed: frozenset[str]
    # by distribution, where its metadata is silent
    silent: Mapping[str, str] = field(default_factory=dict)
    # by distribution: one licence that it may have besides
    exceptions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Self:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        named = [{name: row["licence"] for name, row in table[key].items()} for key in ("silent", "exceptions")]
        return cls(frozenset(table["allowed"]), *named)

    def licences(self, component: Mapping[str, Any]) -> list[str]:
        """Of a component of CycloneDX; an expression gives all that it names, alternatives too."""
        licences = {licence for entry in component.get("licenses", []) for licence in _licences(entry)}
        return sorted(licences) or [*filter(None, [self.silent.get(canonicalize_name(component["name"]))])]

    def problems(self, components: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """One line for each component whose licence is unknown or not allowed."""
        for component in components:
            name, licences = canonicalize_name(component["name"]), self.licences(component)
            if not licences:
                yield f"{name}: its metadata names no licence; look for it, and name it under silent in licences.toml"
            for licence in sorted({*licences} - self.allowed - {self.exceptions.get(name)}):
                yield f"{name}: {licence} is not allowed; see exceptions in licences.toml"


def _licences(entry: Mapping[str, Any]) -> set[str]:
    """https://cyclonedx.org/docs/1.6/json/#components_items_licenses: an expression, an identifier or a name."""
    if "expression" in entry:
        return {part.strip() for part in _OPERATORS.split(entry["expression"])} - {""}
    licence = entry["license"]
    return {str(licence.get("id") or licence["name"]).rpartition(" :: ")[2]}
