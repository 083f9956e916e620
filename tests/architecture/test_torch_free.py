from __future__ import annotations

from tests.architecture.conftest import Break
from tools.checks.torch_free import torch_free


def test_a_module_that_imports_torch_is_found(broken: Break) -> None:
    packages = ("cli", "config", "engine", "kvcache", "platform", "scheduler", "server", "text")
    for package in packages:
        tree = broken(f"core/tessera/{package}/broken.py", "import torch\n")
    findings = torch_free(tree)
    for package in packages:
        assert f"tessera.{package}.broken: ModuleNotFoundError: torch is blocked" in findings


def test_one_that_gets_there_through_another_module_is_found(broken: Break) -> None:
    broken("core/tessera/loader/broken.py", "import transformers\n")
    findings = torch_free(broken("core/tessera/text/broken.py", "import tessera.loader.broken\n"))
    assert "tessera.text.broken: ModuleNotFoundError: transformers is blocked" in findings


def test_an_import_that_is_tried_and_swallowed_is_found(broken: Break) -> None:
    text = "try:\n    import torch.nn\nexcept ImportError:\n    torch = 1\n"
    findings = torch_free(broken("core/tessera/server/broken.py", text))
    assert findings == ["tessera.server.broken: tries to import torch"]


def test_a_type_checkers_import_is_none(broken: Break) -> None:
    text = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch\n"
    assert torch_free(broken("core/tessera/server/broken.py", text)) == []
