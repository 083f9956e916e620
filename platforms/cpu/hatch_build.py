"""Puts the native kernels into the wheel where there is a compiler; without one the package runs on torch's kernels.
With a cross compiler in CXX the wheel is one for its target."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "tessera_cpu/libtessera_cpu.so"


class NativeKernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = runpy.run_path(str(Path(self.root, "csrc/build.py")))
        library = Path(self.root, LIBRARY)
        try:
            if script["is_for_another"]():  # the package in the tree, which may be installed, keeps its own
                library = Path(self.directory, Path(LIBRARY).name)
                build_data["force_include"][str(library)] = LIBRARY
            else:
                build_data["artifacts"].append(LIBRARY)
            script["build"](library)
        except script["BuildError"] as error:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"{error}; tessera-cpu will run on torch's kernels, which are slower.")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{script['wheel_platform'](library)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        Path(self.directory, Path(LIBRARY).name).unlink(missing_ok=True)
