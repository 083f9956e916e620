"""Puts the native kernels into the wheel where there is a compiler; without one the package runs on torch's kernels."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = runpy.run_path(str(Path(self.root, "csrc/build.py")))
        library = Path(self.root, "tessera_cpu/libtessera_cpu.so")
        try:
            script["build"](library)
        except script["BuildError"] as error:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"{error}; tessera-cpu will run on torch's kernels, which are slower.")
            return
        build_data["artifacts"].append("tessera_cpu/libtessera_cpu.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
