"""What the front process may not load."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading

import pytest

from tessera.plugins.loading import without_torch


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Stands for torch: a package of that name which can be imported."""
    (tmp_path / "torch.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch"}
    refusing = [finder for finder in sys.meta_path if type(finder).__name__ == "RefuseTorch"]
    for finder in refusing:
        sys.meta_path.remove(finder)
    yield
    sys.meta_path[:0] = refusing
    sys.modules.pop("torch", None)
    sys.modules.update(held)


@pytest.mark.usefixtures("package")
def test_an_import_fails_and_is_noted_though_it_was_swallowed():
    with without_torch() as attempts, contextlib.suppress(ImportError):
        importlib.import_module("torch")
    assert attempts == ["torch"]
    assert "torch" not in sys.modules
    assert importlib.import_module("torch").loaded


@pytest.mark.usefixtures("package")
def test_other_threads_import_as_ever():
    found = []
    with without_torch() as attempts:
        thread = threading.Thread(target=lambda: found.append(importlib.import_module("torch").loaded))
        thread.start()
        thread.join()
    assert (found, attempts) == ([True], [])
