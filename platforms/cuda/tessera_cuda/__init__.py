"""Tessera's platform for NVIDIA GPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl
from tessera_triton.environment import VARIABLES


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "cuda",
            probe="tessera_cuda.probe:probe",
            platform="tessera_cuda.platform:CudaPlatform",
            variables=VARIABLES,
        )
    ]
