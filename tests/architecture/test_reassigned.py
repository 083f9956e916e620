from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.conftest import Break
from tools.checks.reassigned import reassigned

FILE = "platforms/mine/tessera_mine/kernels/file.py"
PATCHES = [
    "import torch\ntorch.add = None",
    "import torch\ntorch.nn.functional.linear = None",
    "import torch as library\nlibrary.nn.Linear.forward = None",
    "from torch.nn import Linear\nLinear.forward = None",
    "from torch.nn import Linear\nLinear.forward: object = None",
    "from torch.nn import Linear\nLinear.calls += 1",
    "from torch.nn import Linear\ndel Linear.forward",
    "from torch.nn import Linear\nkept, Linear.forward = 1, None",
    "from torch.nn import Linear\nfor Linear.forward in (): pass",
    "from torch.nn import Linear\nwith open('x') as Linear.forward: pass",
    "from torch.nn import Linear\nsetattr(Linear, 'forward', None)",
    "from torch.nn import Linear\ntype.__setattr__(Linear, 'forward', None)",
    "import torch\nvars(torch)['add'] = None",
    "import torch\ntorch.__dict__.update(add=None)",
    "import sys\nsys.modules['torch'] = None",
    "def f():\n    import torch\n    torch.add = None",
    "def f(torch):\n    torch.cuda.Stream = None",
    "class A:\n    def f(self):\n        self.torch.cuda.Stream = None",
    "from importlib import import_module\nnpu = import_module('torch_npu')\nnpu.npu_swiglu = None",
    "from importlib import import_module\nimport_module('torch_npu').npu_swiglu = None",
    "import torch\nnn = torch.nn\nnn.Linear = None",
    "import torch\nkind = getattr(torch.nn, 'Linear')\nkind.forward = None",
    "def f(layer):\n    type(layer).forward = None",
    "from tessera.platform import Platform\nPlatform.open = None",
    "from unittest.mock import patch",
]
ALLOWED = [
    "import torch\nx = torch.empty(1)\nx.grad = None",
    "import os\nos.environ['A'] = '1'",
    "class A:\n    def __init__(self, torch, device):\n        self.torch, self.device = torch, device",
    "from torch.nn import Linear\nclass Mine(Linear):\n    forward = None",
    "class A:\n    pass\nA.table = ()",
    "def f(launch):\n    launch.slots = None",
    "def f(found, names):\n    for name in names:\n        one = getattr(found, name)\n        one.restype = None",
    "import torch\ntorch.manual_seed(1)",
]


def test_a_patch_among_the_platforms_is_found(broken: Break) -> None:
    (finding,) = reassigned(broken("platforms/gaudi/tessera_gaudi/ops.py", "torch.add = None\n"))
    assert finding.startswith("platforms/gaudi/tessera_gaudi/ops.py:")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A tree with a file for one more in its one package, which imports torch elsewhere."""
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    (file.parent / "other.py").write_text("import torch\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("code", PATCHES)
def test_each_way_of_patching_is_found(package: Path, code: str) -> None:
    (package / FILE).write_text(f"{code}\n", encoding="utf-8")
    findings = reassigned(package)
    assert len(findings) == 1
    assert findings[0].startswith(f"{FILE}:")


@pytest.mark.parametrize("code", ALLOWED)
def test_what_belongs_to_the_package_is_its_own(package: Path, code: str) -> None:
    (package / FILE).write_text(f"{code}\n", encoding="utf-8")
    assert reassigned(package) == []
