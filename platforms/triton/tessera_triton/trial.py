"""A trial of copied keys in a process of its own, with a time limit: a kernel that a compiler divided wrongly may hang,
or leave its process with a device that answers errors only. What was found is remembered for later starts."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import triton

from tessera.platform import Device, FullAttentionSpec, LayerSpec, Reason
from tessera_triton.copying import Attend, Copying
from tessera_triton.facts import DeviceFacts, Launcher

log = logging.getLogger("tessera.triton")

SECONDS = 60.0
"""For importing torch, compiling three kernels and launching them."""
PROGRAM = (sys.executable, "-P", "-m", "tessera_triton.trial")
_OF_LAYER = ("num_heads", "num_kv_heads", "head_dim", "scale", "dtype", "window", "softcap", "sinks")
_UNDECIDED = 3  # the exit status of a trial that says nothing about the kernel


def tried_apart(
    copying: Copying, load: Attend, device: Device, *, program: Sequence[str] = PROGRAM, seconds: float = SECONDS
) -> Reason | None:
    """As attention.Trial says. program: what is started, with the question at its standard input."""
    layer = {name: getattr(copying.spec, name) for name in _OF_LAYER}
    question = {"facts": asdict(copying.facts), "layer": layer, "specialize": copying.specialize}
    key = f"copied attention, Triton {triton.__version__}: {json.dumps(question, sort_keys=True)}"
    known = device.artifacts.get(key)
    if known is not None:
        return f"{known.decode()} (tried at an earlier start)" if known else None
    answer = _answer(json.dumps({**question, "device": str(device.target)}), program, seconds)
    if answer is None:
        return "its trial in a process of its own did not run; --log-level debug shows what it wrote"
    device.artifacts.put(key, answer.encode())
    return answer or None


def _answer(question: str, program: Sequence[str], seconds: float) -> str | None:
    """What is wrong, "" for nothing, or None if the trial could not find out."""
    try:
        done = subprocess.run(program, input=question, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it hung, or was not done in {seconds:.0f} s"
    log.debug("the trial of copied keys ended with %d: %s", done.returncode, done.stderr[-2000:])
    if done.returncode < 0:
        return f"it ended its process with signal {-done.returncode}"
    if done.returncode != 0:
        return None
    found: str = json.loads(done.stdout.splitlines()[-1])["difference"]
    return found


# ---- the process


def main() -> int:
    """Prints what is wrong, as JSON."""
    question: dict[str, Any] = json.load(sys.stdin)
    device = torch.device(question["device"])
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    from tessera_triton.attention import PagedLayer

    facts, launch, layer = DeviceFacts(**question["facts"]), Launcher(), question["layer"]
    cache = FullAttentionSpec(layer["num_kv_heads"], layer["head_dim"], layer["dtype"])
    spec = LayerSpec(layer=0, kind="attention", cache=cache, **layer)
    no_ops: Any = None  # a layer without rotary and norms binds none
    loaded = PagedLayer(spec, {}, no_ops, facts, launch)
    copying = Copying(facts, launch, spec, loaded.factors, question["specialize"])
    try:
        difference = copying.difference(loaded.load, device)
    except torch.OutOfMemoryError:
        return _UNDECIDED
    sys.stdout.write(json.dumps({"difference": difference or ""}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
