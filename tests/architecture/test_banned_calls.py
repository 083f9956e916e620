from __future__ import annotations

import pytest

from tests.architecture.conftest import Break
from tools.checks.banned_calls import banned_calls

BANNED = [
    "import pickle",
    "from pickle import loads",
    "import cloudpickle",
    "import dill",
    "import marshal",
    "def f():\n    import pickle",
    "eval('1')",
    "exec('1')",
    "import builtins\nbuiltins.eval('1')",
    "run = eval",
    "import torch\ntorch.load('x')",
    "from torch import load",
    "load('x', weights_only=False)",
    "np.load('x', allow_pickle=True)",
    "run('x', shell=True)",
    "import os\nos.system('x')",
    "AutoConfig.from_pretrained('x', trust_remote_code=True)",
]
ALLOWED = ["model.eval()", "run(['x'], shell=False)", "torch.loads", "safetensors.torch.load('x')"]


@pytest.mark.parametrize("code", BANNED)
@pytest.mark.parametrize("file", ["core/tessera/engine/broken.py", "platforms/cpu/tessera_cpu/broken.py"])
def test_each_way_of_doing_it_is_found(alone: Break, file: str, code: str) -> None:
    findings = banned_calls(alone(file, f"{code}\n"))
    assert len(findings) == 1
    assert findings[0].startswith(f"{file}:")


@pytest.mark.parametrize("code", ALLOWED)
def test_what_only_looks_like_it_is_not(alone: Break, code: str) -> None:
    assert banned_calls(alone("core/tessera/engine/broken.py", f"{code}\n")) == []
