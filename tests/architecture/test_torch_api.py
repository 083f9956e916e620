"""What versions of torch lack is found in their files."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.torch_api import Library, complaints, uses

FILES = {
    "torch/__init__.py": "from math import inf as inf\nfrom torch._tensor import Tensor\nfrom .functional import *\n",
    "torch/_tensor.py": "class Tensor(torch._C.TensorBase):\n  def storage(self): ...\n",
    "torch/_C/__init__.pyi": "class TensorBase:\n  def numpy(self): ...\nclass dtype: ...\nbfloat16: dtype = ...\n",
    "torch/_C/_VariableFunctions.pyi": "@overload\ndef empty(*size: int, dtype: dtype) -> Tensor: ...\n"
    "@overload\ndef empty(size: list[int], *, device: str) -> Tensor: ...\n",
    "torch/functional.py": "if True:\n  def split(tensor, size, dim=0): ...\n",
    "torch/accelerator/__init__.py": "class Graph:\n  def __init__(self, pool=None): ...\n",
    "torch/nn/functional.pyi": "from .. import empty as made\n",
}

RIGHT = """
import torch
from torch.nn import functional as F
torch.empty(1, 2, dtype=torch.bfloat16); torch.empty([1], device="cpu"); torch.split(x, 2, dim=1); torch.inf
torch.Tensor.numpy; torch.Tensor.storage; F.made(3, dtype=None); self.torch.accelerator.Graph(pool=None)
torch.bfloat16.itemsize; torch.ops.some.thing(1)
"""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    with ZipFile(tmp_path / "torch.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return Library(tmp_path / "torch.whl")


def said(library: Library, code: str, folder: Path, version: str = "2.13.0") -> list[str]:
    (folder / "code.py").write_text(code)
    return list(complaints(library, version, list(uses(folder / "code.py", folder))))


def test_what_a_version_has_is_found(library: Library, tmp_path: Path) -> None:
    assert said(library, RIGHT, tmp_path) == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("torch.full(1)", "torch 2.13.0 has no torch.full (code.py:1)"),
        ("torch.Tensor.cpu", "torch 2.13.0 has no torch.Tensor.cpu (code.py:1)"),
        ("self.torch.accelerator.empty_cache()", "torch 2.13.0 has no torch.accelerator.empty_cache (code.py:1)"),
        ("torch.empty(1, pin=1)", "torch.empty of torch 2.13.0 does not take 1 positional, pin (code.py:1)"),
        ("torch.split(x, 1, 2, 3)", "torch.split of torch 2.13.0 does not take 4 positional (code.py:1)"),
        ("torch.accelerator.Graph(of=1)", "torch.accelerator.Graph of torch 2.13.0 does not take of (code.py:1)"),
    ],
)
def test_what_a_version_lacks_is_told(library: Library, tmp_path: Path, code: str, wrong: str) -> None:
    assert said(library, code, tmp_path) == [wrong]


def test_what_is_known_to_be_newer_may_be_absent(library: Library, tmp_path: Path) -> None:
    code = "torch.accelerator.get_memory_info()"
    assert said(library, code, tmp_path, "2.9.0") == []
    assert len(said(library, code, tmp_path, "2.10.0")) == 1
