"""Tessera's platform for NVIDIA GPUs."""

from __future__ import annotations

from tessera.platform import API_LEVELS, Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "cuda",
            probe="tessera_cuda.probe:probe",
            platform="tessera_cuda.platform:CudaPlatform",
            levels=dict.fromkeys(API_LEVELS, 0),
        )
    ]
