"""What in a plugin's package breaks the contract: read, and imported once in a child process.
docs/plugins/template.md lists the findings."""

from __future__ import annotations

from tessera.plugins.check.package import Finding, Package, Source, read_package
from tessera.plugins.check.rules import check

__all__ = ["Finding", "Package", "Source", "check", "read_package"]
