"""Platforms that `tessera plugin new` wrote, importable in this process."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tessera.plugins.template import TemplateAnswers, generate

PLACE = tempfile.gettempdir()
"""Asked for at import: the folder that a test has for its temporary files goes with it."""


@cache
def numpy_package() -> Path:
    """The folder of tessera_numpy: runner depth, tensors that torch never sees."""
    folder = Path(tempfile.mkdtemp(prefix="tessera-generated-", dir=PLACE))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    generate(TemplateAnswers("numpy", "runner", "", "", ("float32",)), folder / "tessera-numpy")
    sys.path.append(str(folder / "tessera-numpy"))
    return folder / "tessera-numpy" / "tessera_numpy"


def numpy_platform() -> str:
    """The dotted path of its platform."""
    return f"{numpy_package().name}.platform:NumpyPlatform"
