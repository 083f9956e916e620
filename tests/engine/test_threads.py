"""How many threads compute, and how they wait: in the processes that are started, and in a Python user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tessera.engine.child import IN_PROCESS, EngineChild

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and what the GNU library says of OpenMP")
SHOWN = {"OMP_NUM_THREADS": "2", "OMP_DISPLAY_ENV": "verbose"}
ASLEEP = "GOMP_SPINCOUNT = '0'"
PROGRAM = """
import json, os, sys
flags, torchs = json.loads(sys.argv[1])
if torchs:
    import torch
    torch.set_num_threads(torchs)
from tessera import LLM, SamplingParams
import tessera_cpu.native
assert torchs or "torch" not in sys.modules
kernels, set_number = [], tessera_cpu.native.use_threads
def use_threads(library, number):
    kernels.append(number)
    set_number(library, number)
tessera_cpu.native.use_threads = use_threads
before = dict(os.environ)
platform = "tessera_cpu.platform:CpuPlatform"
with LLM(platform=platform, dtype="float32", kv_cache_memory_bytes=1 << 24, max_num_seqs=2, **flags) as llm:
    import torch
    within = torch.get_num_threads()
    llm.generate("Hello", SamplingParams(max_tokens=3), use_tqdm=False)
print(json.dumps({"within": within, "after": torch.get_num_threads(), "kernels": kernels}))
changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
assert not {name for name in changed if name.startswith(("OMP", "GOMP", "KMP"))}, changed
"""


def run(torchs: int = 0, variables: dict[str, str] | None = None, **flags: Any) -> tuple[dict[str, Any], str]:
    """What an LLM had with these flags, and what OpenMP said when it was loaded. torchs: torch's number of threads,
    which the user set before; 0: torch is not loaded yet."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")])
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("OMP")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([flags, torchs])],
        env={**surroundings, **SHOWN, "PYTHONPATH": path, **(variables or {})},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@LINUX
@pytest.mark.parametrize(
    ("torchs", "flags", "within", "after"),
    [
        (0, {}, 2, 2),
        pytest.param(0, {"threads": 1}, 1, 2, marks=pytest.mark.nightly),
        pytest.param(3, {}, 3, 3, marks=pytest.mark.nightly),
        (3, {"threads": 1}, 1, 3),
    ],
)
def test_threads_holds_in_python_and_is_given_back(torchs: int, flags: dict[str, int], within: int, after: int) -> None:
    """Without it, torch keeps what the user set."""
    found, said = run(torchs, **flags)
    assert found == {"within": within, "after": after, "kernels": [within]}
    assert (ASLEEP in said) == (torchs == 0), "unless the user loaded torch before"


@LINUX
def test_what_the_user_says_of_waiting_holds() -> None:
    _, said = run(variables={"OMP_WAIT_POLICY": "active"})
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in said
    assert ASLEEP not in said


@LINUX
def test_workers_wait_asleep_too() -> None:
    _, said = run(tensor_parallel_size=2)
    assert said.count(ASLEEP) == 3


@LINUX
def test_an_engines_process_waits_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with EngineChild(IN_PROCESS) as child:
        deadline = time.monotonic() + 20
        while b"PYTHONSAFEPATH=1" not in (variables := Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")):
            assert time.monotonic() < deadline  # it is not this program yet
    assert b"OMP_WAIT_POLICY=passive" in variables
