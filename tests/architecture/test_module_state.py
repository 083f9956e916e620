from __future__ import annotations

import pytest

from tests.architecture.conftest import Break
from tools.checks.module_state import module_state

FILE = "core/tessera/runner/broken.py"


@pytest.mark.parametrize(
    "code",
    [
        "current_platform = 1\ndef choose(x):\n    global current_platform\n    current_platform = x",
        "current_platform = None",
        "current_platform: object = None",
        "_loaded = {}",
        "_loaded: dict = dict()",
        "_loaded = collections.defaultdict(list)",
        "_seen = set()",
        "_context = contextvars.ContextVar('x')",
    ],
)
def test_state_is_found(alone: Break, code: str) -> None:
    findings = module_state(alone(FILE, f"{code}\n"))
    assert len(findings) == 1
    assert findings[0].startswith(FILE)


@pytest.mark.parametrize(
    "code", ["TABLE = {'a': 1}", "NAMES = set(TABLE)", "class C:\n    x = None", "def f():\n    found = []", "x: int"]
)
def test_constants_are_not(alone: Break, code: str) -> None:
    assert module_state(alone(FILE, f"{code}\n")) == []
