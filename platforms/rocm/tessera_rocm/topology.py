"""The GPUs that the kernel's driver lists in sysfs, read without torch and without ROCm's libraries, which take seconds
to load. The files are those of the driver's topology (kfd_topology.c in Linux)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tessera.platform.probing import NoDeviceError, read_text

WSL = "dev/dxg"
"""Windows' driver, as Linux within Windows has it. The kernel there lists no cards, so rocminfo is asked."""
NODES, DEVICE = "sys/class/kfd/kfd/topology/nodes", "dev/kfd"
SECONDS = 20.0
"""For rocminfo, which starts ROCm's runtime."""
_OWN_MEMORY = (1, 2)  # kinds of memory banks: frame buffer that the host sees, and that it does not
_VISIBLE = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))


@dataclass(frozen=True)
class Card:
    """A GPU, or a partition of one."""

    # the product's
    name: str
    # its architecture, such as "gfx942"
    gfx: str
    # bytes; 0 if unknown
    memory: int
    # compute units
    processors: int
    # threads of a wave
    warp_size: int
    # LDS that one program may use
    shared_bytes: int


def cards(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Card]:
    """The cards that this process may use, in the driver's order. root: of the file system. Raises NoDeviceError."""
    found = _listed(root) if (root / NODES).is_dir() or not (root / WSL).exists() else _told(environment)
    for names in _VISIBLE:
        found = _visible(found, next((environment[name] for name in names if environment.get(name)), ""))
    if not found:
        raise NoDeviceError("the environment hides every AMD GPU (ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES)")
    return found


def _listed(root: Path) -> list[Card]:
    if not (root / NODES).is_dir():
        raise NoDeviceError("the kernel's driver for AMD GPUs (amdgpu) is not loaded")
    folders = sorted((root / NODES).iterdir(), key=lambda folder: int(folder.name))
    found = [card for folder in folders for card in _cards(root, folder)]
    if not found:
        raise NoDeviceError("the kernel's driver finds no AMD GPU")
    if not os.access(root / DEVICE, os.R_OK | os.W_OK):
        raise NoDeviceError(
            f"there is {found[0].name}, but /{DEVICE} cannot be opened: add the user to the group render, or start the "
            "container with --device=/dev/kfd --device=/dev/dri --group-add render"
        )
    return found


def _told(environment: Mapping[str, str]) -> list[Card]:
    """The cards that rocminfo tells of. environment: with its PATH."""
    program = shutil.which("rocminfo", path=environment.get("PATH"))
    if program is None:
        raise NoDeviceError("within Windows cards are found by rocminfo, which is not installed; install ROCm for WSL")
    done = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS, check=False)
    agents = re.split(r"^Agent \d+", done.stdout, flags=re.MULTILINE)[1:]
    found = [_of_agent(agent) for agent in agents if re.search(r"Device Type:\s+GPU", agent)]
    if not found:
        raise NoDeviceError("rocminfo finds no AMD GPU; install ROCm for WSL and a driver for Windows that supports it")
    return found


def _of_agent(text: str) -> Card:
    def number(label: str) -> int:
        said = re.search(rf"^\s*{label}:\s+(\d+)", text, re.MULTILINE)
        return int(said[1]) if said else 0

    pools = re.findall(r"Segment:\s+(\w+).*?Size:\s+(\d+)", text, re.DOTALL)
    sizes = {kind: max(int(size) << 10 for other, size in pools if other == kind) for kind, _ in pools}
    gfx = re.search(r"Name:\s+(gfx\w+)", text)
    called = re.search(r"Marketing Name:[ \t]+(\S.*?)\s*$", text, re.MULTILINE)
    arch = gfx[1] if gfx else ""
    return Card(
        name=called[1] if called else f"AMD GPU {arch}",
        gfx=arch,
        memory=sizes.get("GLOBAL", 0),
        processors=number("Compute Unit"),
        warp_size=number("Wavefront Size"),
        shared_bytes=sizes.get("GROUP", 0),
    )


def gfx_of(version: int) -> str:
    """The architecture of a gfx_target_version: 90402 is gfx942, and 90010 gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _cards(root: Path, folder: Path) -> Iterator[Card]:
    """The card of a node, if it is one. A container may not read those of cards that it was not given."""
    try:
        said = _properties(folder / "properties")
    except OSError:
        return
    if not said.get("simd_count"):
        return  # a processor
    gfx = gfx_of(said["gfx_target_version"])
    yield Card(
        name=_name(root, said.get("drm_render_minor", 0)) or f"AMD GPU {gfx}",
        gfx=gfx,
        memory=sum(_own_memory(folder / "mem_banks")),
        processors=said["simd_count"] // said.get("simd_per_cu", 1),
        warp_size=said.get("wave_front_size", 0),
        shared_bytes=said.get("lds_size_in_kb", 0) << 10,
    )


def _own_memory(banks: Path) -> Iterator[int]:
    for file in banks.glob("*/properties"):
        said = _properties(file)
        if said.get("heap_type") in _OWN_MEMORY:
            yield said["size_in_bytes"]


def _name(root: Path, minor: int) -> str:
    """The product's name, which the driver knows of cards for servers."""
    return read_text(root / f"sys/class/drm/renderD{minor}/device/product_name")


def _properties(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    pairs = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _visible(cards: list[Card], chosen: str) -> list[Card]:
    """Those that a variable of the environment chooses by number, up to the first number that there is not. All of
    them if it is empty, or names cards otherwise."""
    numbers = [word.strip() for word in chosen.split(",")]
    if not chosen or any(number.startswith("GPU-") for number in numbers):
        return cards
    present = takewhile(lambda number: number.isdecimal() and int(number) < len(cards), numbers)
    return [cards[int(number)] for number in present]
