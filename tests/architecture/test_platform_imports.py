from __future__ import annotations

import pytest

from tests.architecture.conftest import Break
from tools.checks.platform_imports import platform_imports

PACKAGE = "platforms/cpu/tessera_cpu/broken.py"
TESTS = "platforms/cpu/tests/test_broken.py"


@pytest.mark.parametrize(
    "line",
    [
        "import tessera",
        "import tessera.reference",
        "from tessera import reference",
        "from tessera.config import EngineConfig",
        "from tessera.platforms import anything",
        "def f():\n    from tessera.runner import worker",
        "import tessera.testing",
        "import tessera_rocm",
        "import importlib\nimportlib.import_module('tessera.runner')",
    ],
)
def test_an_import_of_more_is_found(alone: Break, line: str) -> None:
    findings = platform_imports(alone(PACKAGE, f"{line}\n"))
    assert len(findings) == 1
    assert findings[0].startswith(PACKAGE)


@pytest.mark.parametrize(
    "line",
    [
        "from tessera import platform",
        "from tessera.platform import Platform, ops",
        "import tessera.platform.ops",
        "import tessera_cpu.ops",
        "from . import ops",
        "from .ops import norm",
        "import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tessera.config import EngineConfig",
    ],
)
def test_what_a_platform_may_import(alone: Break, line: str) -> None:
    assert platform_imports(alone(PACKAGE, f"{line}\n")) == []


def test_its_tests_may_import_testing_and_no_more(alone: Break) -> None:
    alone(PACKAGE, "")
    assert platform_imports(alone(TESTS, "import tessera.testing\nimport tessera_cpu\n")) == []
    assert len(platform_imports(alone(TESTS, "import tessera.engine\n"))) == 1
