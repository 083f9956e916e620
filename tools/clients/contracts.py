"""The SDKs' own contract tests (tests/api_resources of their source distributions), which call each method with the
required and with all parameters, by sync and async clients, loosely and strictly validated."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build/contracts"
MODELS = (
    "gpt-3.5-turbo-instruct", "gpt-4o", "gpt-4o-mini", "gpt-5.1", "gpt-5.4", "claude-opus-5-5", "model", "model_id",
)  # fmt: skip
"""The names of models in these tests."""
_COUNT = re.compile(r"(\d+) (passed|xfailed|deselected)")


@dataclass(frozen=True)
class Contract:
    """The tests that an SDK has of its API."""

    # The SDK's.
    package: str
    # Of the API, where its clients look for it.
    path: str
    # Those of routes that are served, in tests/api_resources.
    tests: tuple[str, ...]
    # Of pytest, that the SDK's own settings name.
    plugins: tuple[str, ...] = ()

    def version(self) -> str:
        """That of constraints.txt."""
        constraints = (HERE / "constraints.txt").read_text(encoding="utf-8")
        found = re.search(rf"^{self.package}==(\S+)$", constraints, re.MULTILINE)
        assert found is not None
        return found[1]

    def source(self, python: Path) -> Path:
        """The folder of the source distribution, which is downloaded if it is not there. Raises
        CalledProcessError."""
        named = f"{self.package}-{self.version()}"
        if not (FOLDER / named).exists():
            asked = ["--no-deps", "--no-binary", self.package, f"{self.package}=={self.version()}"]
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
            subprocess.run([*pip, "--dest", str(FOLDER), *asked], check=True)
            with tarfile.open(FOLDER / f"{named}.tar.gz") as archive:
                archive.extractall(FOLDER, filter="data")
        return FOLDER / named

    def command(self) -> list[str]:
        """Arguments of Python, in the folder of the source."""
        plugins = [part for plugin in (*self.plugins, "contract_plugin") for part in ("-p", plugin)]
        tests = [f"tests/api_resources/{name}" for name in self.tests]
        return ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--tb=short", *plugins, *tests]

    def environment(self, base: str) -> Mapping[str, str]:
        return {"TEST_API_BASE_URL": f"{base}{self.path}", "PYTHONPATH": str(HERE)}

    def counted(self, output: str) -> str:
        """What of pytest's output matters: how many tests passed, and how many were left out."""
        counts = {what: int(number) for number, what in _COUNT.findall(output)}
        left_out = counts.get("xfailed", 0) + counts.get("deselected", 0)
        return f"{self.package} {self.version()}: {counts.get('passed', 0)} passed, {left_out} left out"


CONTRACTS = {
    "openai_contracts": Contract(
        "openai",
        "/v1",
        (
            "chat", "conversations", "responses", "test_batches.py", "test_completions.py", "test_conversations.py",
            "test_files.py", "test_models.py", "test_responses.py",
        ),
    ),
    "anthropic_contracts": Contract("anthropic", "", ("test_messages.py", "test_models.py"), ("tests._alias_httpx",)),
}  # fmt: skip
