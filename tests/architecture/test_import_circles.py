from __future__ import annotations

from pathlib import Path

import pytest

from tools.checks.import_circles import import_circles

LAZY = "def f():\n    from tessera.b import f"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tessera.b"


def write(root: Path, modules: dict[str, str]) -> Path:
    """A tree whose core has these modules. modules: their text, by their path in the package."""
    for name, text in modules.items():
        path = root / "core" / "tessera" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "text", ["from tessera.b import f", "import tessera.b", "from tessera import b", LAZY, FOR_TYPES]
)
def test_two_that_import_each_other_are_named(tmp_path: Path, text: str) -> None:
    modules = {"a": text, "b": "from tessera.a import g", "c": "import tessera.a"}
    (finding,) = import_circles(write(tmp_path, modules))
    assert "tessera.a -> tessera.b" in finding
    assert "tessera.b -> tessera.a" in finding
    assert "tessera.c" not in finding


def test_every_ring_is_named(tmp_path: Path) -> None:
    ring = {"a": "import tessera.b", "b": "import tessera.c", "c": "import tessera.a"}
    pair = {"d": "import tessera.e", "e": "import tessera.d"}
    findings = import_circles(write(tmp_path, ring | pair))
    named = {frozenset(finding.partition(":")[0].split(" -> ")) for finding in findings}
    assert len(findings) == 2
    assert named == {frozenset(f"tessera.{name}" for name in circle) for circle in (ring, pair)}


def test_a_package_and_a_module_of_it_may_be_a_circle(tmp_path: Path) -> None:
    modules = {"p/__init__": "from tessera.p.a import f", "p/a": "from tessera.p import g"}
    (finding,) = import_circles(write(tmp_path, modules))
    assert "tessera.p -> tessera.p.a" in finding
