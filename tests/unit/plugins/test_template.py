"""What `tessera plugin new` copies out of the template."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tessera.plugins import template
from tessera.plugins.template import TemplateAnswers, generate


def test_what_pip_compiled_in_an_installed_template_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = shutil.copytree(template.template_folder(), tmp_path / "installed")
    for source in list(installed.rglob("*.py")):
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        compiled.parent.mkdir(exist_ok=True)
        compiled.touch()
    monkeypatch.setattr(template, "template_folder", lambda: installed)
    generate(TemplateAnswers("mychip", "op", "cpu", "", ("float32",)), tmp_path / "made")
    names = {path.name for path in (tmp_path / "made").rglob("*")}
    assert "linear.py" in names
    assert not {name for name in names if name.endswith(".pyc") or name == "__pycache__"}
