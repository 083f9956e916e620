"""Real distributions of plugins, and Tessera run beside them as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import hatchling.build
import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "plugins"
TESSERA = "from tessera.cli import main; main()"


class Site:
    """A folder with distributions installed in it, and nothing of Tessera's beside core."""

    def __init__(self, folder: Path, libraries: Path, wheel: Callable[[str], Path]) -> None:
        self.folder = folder
        self.libraries = libraries
        self.wheel = wheel

    def install(self, *names: str) -> Site:
        for name in names:
            with zipfile.ZipFile(self.wheel(name)) as wheel:
                wheel.extractall(self.folder)
        return self

    def run(
        self, *arguments: str, program: str = TESSERA, seconds: float = 30, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`tessera arguments` in an interpreter that sees core, the libraries and what is installed here.

        program: Python to run instead.
        """
        path = os.pathsep.join(map(str, (ROOT / "core", self.folder, self.libraries)))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        environment |= {"PYTHONPATH": path, **variables}
        command = [sys.executable, "-S", "-P", "-c", program, *arguments]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=seconds, check=False
        )


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed libraries without any distribution of Tessera's."""
    folder = tmp_path_factory.mktemp("libraries")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(("tessera", "_tessera", "__editable__")) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the wheel of a fixture distribution from its pyproject.toml, once."""
    built: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("wheels")

    def build(name: str) -> Path:
        if name not in built:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(FIXTURES / name)
                built[name] = folder / hatchling.build.build_wheel(str(folder))
        return built[name]

    return build


@pytest.fixture
def site(tmp_path: Path, libraries: Path, wheel: Callable[[str], Path]) -> Site:
    return Site(tmp_path, libraries, wheel)
