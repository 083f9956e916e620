from __future__ import annotations

import pytest

from tests.architecture.conftest import Break
from tools.checks.places import named_places

# In two parts each, so that this file does not name them.
PLACES = [
    ("/wo", "rk/main"),
    ("/ro", "ot/.cache"),
    ("/ho", "me/someone"),
    ("/Us", "ers/someone"),
    ("C:\\Us", "ers"),
    ("/opt/", "wheels"),
    ("../sh", "ared/x"),
    ("https://py", "pi.org/simple"),
    ("files.python", "hosted.org"),
    ("download.py", "torch.org/whl"),
]


@pytest.mark.parametrize("parts", PLACES, ids=[first for first, _ in PLACES])
@pytest.mark.parametrize("file", ["core/tessera/engine/broken.py", "platforms/cpu/broken.md"])
def test_each_is_found(alone: Break, file: str, parts: tuple[str, str]) -> None:
    findings = named_places(alone(file, f"see {''.join(parts)}\n"))
    assert len(findings) == 1
    assert findings[0].startswith(f"{file}:1: names ")


@pytest.mark.parametrize("text", ["network/main", "a/home", "https://example.com/work/", "pytorch.org/get-started"])
def test_other_paths_are_not(alone: Break, text: str) -> None:
    assert named_places(alone("platforms/cpu/broken.md", f"{text}\n")) == []
