"""Platforms for GPUs from the command line: found on machines with cards, and a server over the chip that stands in for
one answers as the reference does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpus.conftest import PLATFORMS, python_path
from tests.platforms.command_line import is_chosen, serves_as_the_reference
from tests.platforms.emulated import Family

pytestmark = pytest.mark.compiler

GIB = 1 << 30
DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H100 80GB HBM3", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 132;
    return 0;
}
"""


def test_cuda_is_found_and_chosen(tmp_path: Path) -> None:
    """Of the driver's library, what the probe calls."""
    (tmp_path / "driver.c").write_text(DRIVER, encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(command, check=True)
    environment = {"PYTHONPATH": python_path(), "LD_LIBRARY_PATH": str(tmp_path)}
    reason = "NVIDIA H100 80GB HBM3, compute capability 9.0, Triton kernels"
    is_chosen("cuda", {}, tmp_path, environment, devices=[("NVIDIA H100 80GB HBM3", 80 * GIB)], reason=reason)


def test_rocm_is_found_and_chosen(tmp_path: Path) -> None:
    node, name = "sys/class/kfd/kfd/topology/nodes/1", "AMD Instinct MI300X"
    files = {
        f"{node}/properties": "simd_count 1216\nsimd_per_cu 4\nwave_front_size 64\nlds_size_in_kb 64\n"
        "gfx_target_version 90402\ndrm_render_minor 128\n",
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {192 * GIB}\n",
        "sys/class/drm/renderD128/device/product_name": f"{name}\n",
        "dev/kfd": "",
    }
    environment = {"PYTHONPATH": python_path()}
    reason = f"{name} (gfx942), Triton kernels"
    is_chosen("rocm", files, tmp_path, environment, devices=[(name, 192 * GIB)], reason=reason)


def test_xpu_is_found_and_chosen(tmp_path: Path) -> None:
    """Without Intel's build of Triton."""
    card = "sys/class/drm/card0/device"
    files = {
        f"{card}/vendor": "0x8086",
        f"{card}/device": "0xe20b",
        f"{card}/driver": Path("sys/drivers/xe"),
        f"{card}/tile0/physical_vram_size_bytes": str(12 * GIB),
        f"{card}/drm/renderD128/dev": "",
        "dev/dri/renderD128": "",
    }
    reason = "Intel GPU 0xe20b (driver xe), on reference ops: Triton for Intel GPUs is not installed"
    devices = [("Intel GPU 0xe20b", 12 * GIB)]
    is_chosen("xpu", files, tmp_path, {"PYTHONPATH": python_path()}, devices=devices, reason=reason, score=50)


def test_it_serves_what_the_reference_does(family: Family, chip: Any, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path(), "TRITON_INTERPRET": "1"}
    serves_as_the_reference("cuda", PLATFORMS["cuda"], family("llama"), tmp_path, environment)
