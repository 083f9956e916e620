"""docs/triton-kernels.md: what compilers made of the Triton kernels, from platforms/triton/targets.json.
`python -m tools.triton_targets --page` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/triton-kernels.md"

Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By device, and by kernel and place: the fields of triton_targets.Compiled."""

_HEADING = """# Triton kernels, as compiled

What Triton's compilers made of each kernel of `tessera-triton`, at places of a model of 8 billion weights and of text
encoders, in bfloat16 unless they say otherwise ([the library](evidence/platforms.md#the-library-of-triton-kernels)).
`python -m tools.triton_targets` compiles them and compares them with platforms/triton/targets.json; `--write` renews
that table and this page. **None of this has run on a GPU**: it is what compilers said, not a time.

A cell has the registers of a thread (r), the shared memory of a program, and the number of matrix instructions in the
code (mma). A loop over keys has so many buffers for the keys and values of its turns, and begins a turn while so many
copies are still ahead; without buffers, only other programs of a processor compute while one reads. "Specialized": some
warps copy while others multiply, which shows by `setmaxnreg`; a kernel that is meant to be so and is not is an error.
What is **spilled** from registers to memory is in bytes of a thread's stack. An empty cell was not compiled: the device
lacks the dtype, or the launch is the same as at a place above. {spilling}
"""


def page(table: Table) -> str:
    makers = {"NVIDIA": "sm_", "AMD": "gfx"}
    parts = [_HEADING.format(spilling=_spilling(table))]
    for maker, prefix in makers.items():
        names = [name for name in table if name.startswith(prefix)]
        rows = [["Kernel", "Place", *names], ["---"] * (2 + len(names))]
        for where in _places([table[name] for name in names]):
            kernel, _, place = where.partition(" of ")
            rows.append([f"`{kernel}`", place, *(cell(table[name].get(where)) for name in names)])
        parts.append(f"## {maker}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n")
    return "\n".join(parts)


def cell(kernel: Mapping[str, Any] | None) -> str:
    """What a cell says of a kernel on a device, if it was compiled for it."""
    if kernel is None:
        return ""
    shared = kernel["shared"]
    parts = [f"{kernel['registers']} r"]
    if shared:
        parts.append(f"{shared} B" if shared < 1024 else f"{round(shared / 1024)} KiB")
    if kernel["matrix"]:
        parts.append(f"{kernel['matrix']} mma")
    if kernel["setmaxnreg"]:
        parts.append("specialized")
    if "buffers" in kernel:
        parts.append(f"{kernel['buffers']} buffers, {kernel['ahead']} ahead")
    if kernel["spills"]:
        parts.append(f"**{kernel['spills']} spilled**")
    return ", ".join(parts)


def _places(devices: list[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """All kernels and places, those of an op next to each other."""
    every = dict.fromkeys(where for found in devices for where in found)
    ops = list(dict.fromkeys(map(_op, every)))
    return sorted(every, key=lambda where: ops.index(_op(where)))


def _op(where: str) -> str:
    return where.partition(" of ")[2].split()[0].rstrip(",")


def _spilling(table: Table) -> str:
    spilling = {name: sum(said["spills"] > 0 for said in found.values()) for name, found in table.items()}
    named = [f"{number} on {name}" for name, number in spilling.items() if number]
    return f"Kernels that spill: {', '.join(named)}." if named else "No kernel spills."
