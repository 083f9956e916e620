"""What the manifests promise: no torch to build, a pin for every requirement, platforms by their entry point."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

MANIFESTS = [
    "pyproject.toml",
    "platforms/ascend/pyproject.toml",
    "platforms/cpu/pyproject.toml",
    "platforms/cuda/pyproject.toml",
    "platforms/gaudi/pyproject.toml",
    "platforms/neuron/pyproject.toml",
    "platforms/spyre/pyproject.toml",
    "platforms/rocm/pyproject.toml",
    "platforms/tpu/pyproject.toml",
    "platforms/triton/pyproject.toml",
    "platforms/xla/pyproject.toml",
    "platforms/xpu/pyproject.toml",
]
LIBRARIES = ("triton",)
"""What platform packages share; they register no platform."""
PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "tpu", "gaudi", "ascend", "neuron", "spyre", "xla")


def read(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, Version]:
    files = "constraints.txt", "tools/tpu/constraints.txt"
    lines = [line for file in files for line in (root / file).read_text(encoding="utf-8").splitlines()]
    entries = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): Version(version) for name, version in entries}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_building_needs_no_torch(root: Path, manifest: str) -> None:
    names = {Requirement(text).name for text in read(root / manifest)["build-system"]["requires"]}
    assert names == {"hatchling"}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_requirement_is_pinned_to_a_version_it_accepts(
    root: Path, manifest: str, pins: dict[str, Version]
) -> None:
    project = read(root / manifest)["project"]
    texts = [*project["dependencies"], *project.get("optional-dependencies", {}).get("dev", ())]
    required = [Requirement(text) for text in (*texts, *read(root / manifest)["build-system"]["requires"])]
    outside = [requirement for requirement in required if not requirement.name.startswith("tessera")]
    assert outside
    assert [str(r) for r in outside if not r.specifier.contains(pins.get(canonical(r.name), Version("0")))] == []


def test_a_pin_names_no_build_of_one_machine(pins: dict[str, Version]) -> None:
    assert [name for name, version in pins.items() if version.local] == []


def test_each_platform_has_an_extra_that_pulls_its_distribution(root: Path) -> None:
    extras = read(root / "pyproject.toml")["project"]["optional-dependencies"]
    assert {name: Requirement(extras[name][0]).name for name in PLATFORMS} == {
        name: f"tessera-{name}" for name in PLATFORMS
    }


def test_a_platform_comes_in_by_its_entry_point(root: Path) -> None:
    for manifest in (root / "platforms").glob("*/pyproject.toml"):
        (package,) = manifest.parent.glob("tessera_*")
        expected = {} if manifest.parent.name in LIBRARIES else {"tessera": {manifest.parent.name: package.name}}
        assert read(manifest)["project"].get("entry-points", {}) == expected
        assert read(manifest)["project"]["name"] == f"tessera-{manifest.parent.name}"
    core = read(root / "pyproject.toml")["project"]
    assert "tessera" not in core.get("entry-points", {})


def test_core_and_its_platforms_are_released_together(root: Path) -> None:
    text = (root / "core/tessera/_version.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.+)"', text)
    assert version is not None
    for manifest in (root / "platforms").glob("*/pyproject.toml"):
        assert read(manifest)["project"]["version"] == version[1]
