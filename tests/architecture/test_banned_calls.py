from __future__ import annotations

from pathlib import Path

import pytest

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


def test_nothing_runs_what_it_reads(root: Path) -> None:
    assert banned_calls(root) == []


@pytest.mark.parametrize("code", BANNED)
@pytest.mark.parametrize("file", ["core/tessera/engine/broken.py", "platforms/cpu/tessera_cpu/broken.py"])
def test_each_way_of_doing_it_is_found(tmp_path: Path, file: str, code: str) -> None:
    findings = banned_calls(alone(tmp_path, file, code))
    assert len(findings) == 1
    assert findings[0].startswith(f"{file}:")


@pytest.mark.parametrize("code", ALLOWED)
def test_what_only_looks_like_it_is_not(tmp_path: Path, code: str) -> None:
    assert banned_calls(alone(tmp_path, "core/tessera/engine/broken.py", code)) == []


def alone(root: Path, file: str, code: str) -> Path:
    """A tree of one file."""
    path = root / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{code}\n", encoding="utf-8")
    return root
