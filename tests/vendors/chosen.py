"""The platform that this process tests, by the name of its device, and engines on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.platforms import emulated
from tests.platforms.engine_run import EngineRun
from tests.vendors.platforms import VENDOR_PLATFORMS

PLATFORM = VENDOR_PLATFORMS[os.environ["TORCH_FAKECHIP_NAME"]]
STAND_IN = f"tests/vendors/stand_ins/{PLATFORM.package}"


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path(f"platforms/{PLATFORM.package}", STAND_IN)


def start(model: Path, **flags: Any) -> EngineRun:
    return emulated.on_device(
        model, PLATFORM.path, **{"dtype": PLATFORM.dtype, "block_size": PLATFORM.block_size, **flags}
    )
