"""Finds violations of the contract in a plugin's package: by reading its source, and importing it once in a child
process. docs/plugins/template.md lists the findings."""

from __future__ import annotations

from tessera.plugins.check.package import Finding, Package, SourceFile, read_package
from tessera.plugins.check.rules import check

__all__ = ["Finding", "Package", "SourceFile", "check", "read_package"]
