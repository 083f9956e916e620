"""What every test gets: no network, no settings of the developer's, and the choice of which tests run."""

from __future__ import annotations

import ast
import os
import signal
import sys
import tempfile
import zlib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path

import hypothesis
import pytest

from tools.checks.sources import imports

# A nightly test runs in `make test-all` on one day of this many.
NIGHTLY_SHARES = 42

# A test file that imports one of these, or what lies in it, needs torch.
LOADS_TORCH = (
    "benchmarks.host",
    "safetensors.torch",
    "tessera.LLM",
    "tessera.layers",
    "tessera.llm",
    "tessera.loader",
    "tessera.models",
    "tessera.ops",
    "tessera.quantization",
    "tessera.reference",
    "tessera.runner",
    "tessera.testing",
    "tools.template_table",
    "torch",
    "transformers",
)

for _name in [name for name in os.environ if name.startswith("TESSERA_")]:
    del os.environ[_name]
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.TemporaryDirectory(prefix="tessera-cache-", ignore_cleanup_errors=True)
os.environ["TESSERA_CACHE"] = _CACHE.name
# A shell that starts this in the background has SIGINT ignored, and nohup SIGHUP; children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

hypothesis.settings.register_profile("test", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("test")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tessera")
    group.addoption(
        "--torch", choices=("any", "without", "only"), default="any", help="which test files, by their need"
    )
    group.addoption("--nightly", choices=("none", "share", "all"), default="none", help="which nightly tests")
    group.addoption("--case-days", type=int, default=1, help="days over which the cases of each test are spread")
    group.addoption("--day", type=date.fromisoformat, default=None, help="YYYY-MM-DD, today unless given")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--torch") == "without":
        if "torch" in sys.modules:
            raise pytest.UsageError("--torch=without: a conftest.py or plugin has imported torch")
        sys.meta_path.insert(0, RefuseTorch())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    choice = config.getoption("--torch")
    if choice == "any" or collection_path.suffix != ".py" or not collection_path.is_file():
        return None
    return True if needs_torch(collection_path.read_text(encoding="utf-8")) != (choice == "only") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choice, day = config.getoption("--nightly"), _day(config)
    nightly = {item.nodeid for item in items if item.get_closest_marker("nightly")}
    chosen = {nodeid for nodeid in nightly if runs_on(nodeid, choice, day)}
    chosen |= cases_on(
        [item.nodeid for item in items if item.nodeid not in nightly], config.getoption("--case-days"), day
    )
    left_out = [item for item in items if item.nodeid not in chosen]
    if left_out:
        items[:] = [item for item in items if item.nodeid in chosen]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def day(pytestconfig: pytest.Config) -> date:
    """The day whose share of what is too long for every run runs."""
    return _day(pytestconfig)


def _day(config: pytest.Config) -> date:
    day: date | None = config.getoption("--day")
    return day or datetime.now(UTC).date()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # No file need be on either side of the line that --torch draws, and not every day has a share of all folders.
    options = session.config.getoption("--torch"), session.config.getoption("--nightly")
    if (options[0] != "any" or options[1] == "share") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def runs_on(nodeid: str, choice: str, day: date) -> bool:
    """Whether a nightly test runs: all, none, or one day in NIGHTLY_SHARES."""
    if choice == "share":
        return (zlib.crc32(nodeid.encode()) + day.toordinal()) % NIGHTLY_SHARES == 0
    return choice == "all"


def cases_on(nodeids: Sequence[str], days: int, day: date) -> set[str]:
    """Which of the tests run on a day if the cases of each function are spread over so many: at least one of each
    function, and each case at least once in those days. Functions of a file that have the same cases run the same ones
    on a day, since they often share what is made for a case."""
    functions: dict[str, list[str]] = {}
    for nodeid in nodeids:
        functions.setdefault(nodeid.partition("[")[0], []).append(nodeid)
    chosen: set[str] = set()
    for function, cases in functions.items():
        spread = min(days, len(cases))
        chosen.update(cases[-(zlib.crc32(function.partition("::")[0].encode()) + day.toordinal()) % spread :: spread])
    return chosen


def needs_torch(text: str) -> bool:
    """Whether a test file's own imports, those inside functions too, load torch."""
    return any(_loads_torch(entry.target) for entry in imports(ast.parse(text)) if not entry.type_checking)


def _loads_torch(target: str) -> bool:
    if target.startswith("tessera.executor."):
        return not target.startswith("tessera.executor.base")
    if target.startswith("tessera_"):
        return "." in target
    return any(target == name or target.startswith(f"{name}.") for name in LOADS_TORCH)


class RefuseTorch:
    """A finder that keeps a run without torch honest."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(
                f"{name} was imported in a run without torch: import it in the test file itself", name=name
            )
        return None
