"""`tpu` from the command line: it is found on a machine with four chips, and a server on JAX's CPU answers as the
reference does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.platforms.command_line import is_chosen, serves_as_the_reference

BUS = "sys/bus/pci/devices"
ENVIRONMENT = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    files = {}
    for number in range(4):
        files |= {f"{BUS}/0000:00:0{number}.0/vendor": "0x1ae0", f"{BUS}/0000:00:0{number}.0/device": "0x006f"}
    is_chosen("tpu", files, tmp_path, ENVIRONMENT, devices=["TPU v6e"] * 4, reason="TPU v6e, compiled by XLA")


def test_it_serves_what_the_reference_does(family: Callable[[str], Path], tmp_path: Path) -> None:
    sizes = ("--max-num-batched-tokens", "64", "--max-model-len", "128")
    platform = "tessera_tpu.platform:HostPlatform"
    serves_as_the_reference("tpu-host", platform, family("llama"), tmp_path, ENVIRONMENT, *sizes)
