"""What the kit does not try of latent attention: rows that are split among threads, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import torch

from tessera.platform import LatentSpec
from tessera.testing.latent import LatentCase, LatentTrial
from tessera_cpu import native
from tessera_cpu.latent import LatentAttention
from tests.platforms.cpu_kernels import needs_kernels


@needs_kernels
def test_rows_that_are_split_among_threads_are_joined() -> None:
    """Some heads of a row, all of many, and more rows than are computed at once."""
    library = native.library()
    for rows, heads in ((((1, 1500), (3, 700), (1, 20)), 5), (((2, 900),), 70), (((1, 130),) * 520, 2)):
        trial = LatentTrial(LatentAttention(library), LatentCase(rows, 16, heads=heads, dtype="float32"))
        native.use_threads(library, 3)
        try:
            results = trial.run()
        finally:
            native.use_threads(library, 1)
        for result, expected in zip(results, trial.expected(), strict=True):
            torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


def test_the_kernel_says_what_it_cannot_do() -> None:
    backend, spec = LatentAttention(None), LatentCase(((1, 1),)).spec()
    assert backend.supports(spec) is None
    half = replace(spec, dtype="float16")
    assert backend.supports(half) == "no kernel for float16 with latents in float32"
    assert backend.supports(replace(spec, cache=LatentSpec(700, 8, "float32"))) == "latents of 708, more than 640"
    assert backend.supports(replace(spec, value_dim=300)) == "heads of 300, larger than 256"
