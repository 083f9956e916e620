from __future__ import annotations

from pathlib import Path

from tests.architecture.conftest import Break
from tools.checks.variables import undeclared_variables


def test_every_variable_is_declared(root: Path) -> None:
    assert undeclared_variables(root) == []


def test_a_variable_that_nobody_declares_is_found(broken: Break) -> None:
    name = "_".join(("TESSERA", "NEW"))
    text = f'import os\n\nx = os.environ.get("{name}")\n'
    path = "platforms/triton/tessera_triton/broken.py"
    assert undeclared_variables(broken(path, text)) == [f"{path}:3: {name} is declared in no environment.py"]


def test_what_an_environment_file_names_is_declared(broken: Break) -> None:
    text = f'NEW = "{"_".join(("TESSERA", "NEW"))}"\n'
    assert undeclared_variables(broken("platforms/gaudi/tessera_gaudi/environment.py", text)) == []
