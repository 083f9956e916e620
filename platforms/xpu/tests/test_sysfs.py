"""What sysfs says of the cards, and what the probe makes of it. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.platform.probing import NoDeviceError
from tessera_xpu import probe as module
from tessera_xpu.sysfs import Card, cards

GIB = 1 << 30
INTEGRATED = Card("integrated Intel GPU 0x64a0", "xe", 0, True)
B580 = Card("Intel GPU 0xe20b", "xe", 12 * GIB, False)


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "sys/class/drm").mkdir(parents=True)
    (tmp_path / "sys/class/drm/version").touch()
    return tmp_path


def card(root, number, address, identity, *, driver="xe", vendor="0x8086", files=None):
    """Adds a card to the tree, and the files that a driver adds for its memory."""
    device, folder = root / "sys/devices" / address, root / f"sys/class/drm/card{number}"
    node = f"renderD{128 + number}"
    (device / f"drm/{node}").mkdir(parents=True)
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    (root / "dev/dri" / node).touch()
    (root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(root / "sys/drivers" / driver)
    (device / "vendor").write_text(f"{vendor}\n", encoding="utf-8")
    (device / "device").write_text(f"{identity}\n", encoding="utf-8")
    folder.mkdir()
    (folder / "device").symlink_to(device)
    (root / f"sys/class/drm/card{number}-DP-1").mkdir()
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_cards_with_memory_of_their_own_come_first(root):
    card(root, 0, "0000:00:02.0", "0x64a0")
    card(root, 1, "0000:03:00.0", "0xe20b", files={"device/tile0/physical_vram_size_bytes": f"{12 * GIB:#x}\n"})
    assert cards(root) == [B580, INTEGRATED]


def test_two_cards_of_a_kind_are_two(root):
    memory = {"device/tile0/physical_vram_size_bytes": f"{12 * GIB}\n"}
    card(root, 0, "0000:03:00.0", "0xe20b", files=memory)
    card(root, 1, "0000:07:00.0", "0xe20b", files=memory)
    assert cards(root) == [B580, B580]


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({f"device/tile{tile}/physical_vram_size_bytes": f"{64 * GIB}" for tile in (0, 1)}, 128 * GIB),
        ({"lmem_total_bytes": f"{16 * GIB}"}, 16 * GIB),
        ({"lmem_total_bytes": "unreadable"}, 0),
        ({}, 0),
    ],
)
def test_memory_is_what_the_driver_says(root, files, memory):
    card(root, 0, "0000:03:00.0", "0x56a0", driver="i915", files=files)
    assert cards(root) == [Card("Intel GPU 0x56a0", "i915", memory, False)]


def test_cards_of_other_vendors_and_drivers_are_none(root):
    card(root, 0, "0000:03:00.0", "0x73bf", driver="amdgpu", vendor="0x1002")
    card(root, 1, "0000:04:00.0", "0xe20b", driver="vfio-pci")
    found = module.probe(root)
    assert (found.score, found.reason) == (0, "the kernel's drivers for Intel GPUs (xe, i915) find none")


def test_no_drivers_at_all_are_told(tmp_path):
    assert module.probe(tmp_path).reason == "the kernel's drivers for Intel GPUs (xe, i915) find none"


def test_a_container_without_access_is_told_what_to_do(root):
    card(root, 0, "0000:03:00.0", "0xe20b")
    (root / "dev/dri/renderD128").unlink()
    found = module.probe(root)
    assert found.score == 0
    assert found.reason == (
        "there is Intel GPU 0xe20b, but its file in /dev/dri cannot be opened: add the user to the group render, or "
        "start the container with --device=/dev/dri --group-add render"
    )


@pytest.mark.parametrize(
    ("has_triton", "score", "reason"),
    [
        (True, 100, "Intel GPU 0xe20b (driver xe), Triton kernels"),
        (False, 50, "Intel GPU 0xe20b (driver xe), on reference ops: Triton for Intel GPUs is not installed"),
    ],
)
def test_the_probe_names_card_and_reason(root, monkeypatch, has_triton, score, reason):
    missing = None if has_triton else "Triton for Intel GPUs is not installed"
    monkeypatch.setattr(module, "absent", lambda name, devices: missing)
    card(root, 0, "0000:03:00.0", "0xe20b", files={"lmem_total_bytes": f"{12 * GIB}"})
    found = module.probe(root)
    assert (found.score, found.reason) == (score, reason)
    assert [(device.name, device.index, device.memory) for device in found.devices] == [(B580.name, 0, B580.memory)]


def test_the_probe_imports_neither_torch_nor_triton():
    program = "import sys; sys.modules.update(torch=None, triton=None); from tessera_xpu import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [0, 1]),
        ({"ZE_AFFINITY_MASK": "1"}, [1]),
        ({"ZE_AFFINITY_MASK": "0.1"}, [0]),
        ({"ZE_AFFINITY_MASK": "GPU-1"}, [0, 1]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:1"}, [1]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}, [0, 1]),
        ({"ONEAPI_DEVICE_SELECTOR": "!opencl:*"}, [0, 1]),
        ({"ZE_AFFINITY_MASK": "1", "ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, [1]),
    ],
)
def test_the_environment_chooses_cards(root, environment, expected):
    memory = {"device/tile0/physical_vram_size_bytes": f"{12 * GIB}\n"}
    for number, address in enumerate(("0000:03:00.0", "0000:07:00.0")):
        card(root, number, address, f"0xe20{number}", files=memory)
    assert [found.name for found in cards(root, environment)] == [f"Intel GPU 0xe20{index}" for index in expected]


def test_an_environment_that_hides_every_card_is_told(root):
    card(root, 0, "0000:03:00.0", "0xe20b")
    with pytest.raises(NoDeviceError, match="^the environment hides every Intel GPU"):
        cards(root, {"ZE_AFFINITY_MASK": "3"})
