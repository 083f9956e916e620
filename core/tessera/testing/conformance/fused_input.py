"""Silver: an attention layer as one composite (norms, rotary, write, attend) against the reference's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.platform.attention import AttentionBackend, LayerSpec
from tessera.platform.launch import Launch
from tessera.platform.ops import BoundOps, NormSpec, RotarySpec
from tessera.reference.attention import ReferenceAttention
from tessera.reference.dtypes import torch_dtype
from tessera.testing.attention_cases import AttentionCase
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.arguments import named, placed
from tessera.testing.conformance.attention import block_sizes, fitted, kept_in, trial
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, falls_back
from tessera.testing.conformance.target import Target, reference_ops

_ROTARIES: Mapping[str, Callable[[int], RotarySpec | None]] = MappingProxyType(
    {
        "unturned": lambda dim: None,
        "half": lambda dim: RotarySpec(dim, dim, "half"),
        "half-in-part": lambda dim: RotarySpec(dim, 8, "half"),
        "pairs": lambda dim: RotarySpec(dim, dim, "pairs"),
    }
)
"""By the size of a head."""


def fused_cases(target: Target) -> Iterator[Case]:
    """One for each backend, way of turning heads, and dtype, with norms of heads and without."""
    if target.brings_a_runner:
        return
    for backend in target.backends:
        for dtype in target.platform.capabilities.dtypes:
            for name, rotary in _ROTARIES.items():
                for norms, kept in product((False, True), kept_in(backend, dtype)):
                    yield Case(
                        f"fused/{backend.name}/{name}{'-normed' if norms else ''}-{dtype}{kept and f'-over-{kept}'}",
                        "silver",
                        "fused attention",
                        partial(_check, target, backend, rotary, norms, dtype, kept),
                    )


def _check(
    target: Target,
    backend: AttentionBackend,
    turning: Callable[[int], RotarySpec | None],
    norms: bool,
    dtype: str,
    kept: str,
) -> Verdict:
    case = fitted(backend, AttentionCase(((1, 20), (7, 30)), dtype=dtype, kv_dtype=kept))
    norm, rotary = NormSpec(case.head_dim, dtype, 1e-6) if norms else None, turning(case.head_dim)
    spec = replace(case.spec(), rotary=rotary, q_norm=norm, k_norm=norm)
    reason = backend.supports(spec)
    if reason is not None:
        return falls_back(reason)
    case = replace(case, block_size=block_sizes(backend, case)[-1])
    made = trial(target, backend, case)
    spec = replace(spec, cache=made.case.spec().cache)
    found = _fused(made, spec)
    expected = _fused(AttentionTrial(ReferenceAttention(), made.case, ops=reference_ops()), spec)
    text = difference(found, expected, TOLERANCES[dtype])
    if text is not None:
        said = f"{rotary}, {'normed, ' if norms else ''}{dtype}"
        raise ConformanceError(f"fused attention of {said}: {text}", named(result=found, expected=expected))
    return PASSED


def _fused(made: AttentionTrial, spec: LayerSpec) -> Tensor:
    """[tokens, H D] of the same random activation, on the host."""
    made.run()
    ops: BoundOps = made.ops
    random = torch.Generator().manual_seed(1)
    dim = spec.head_dim if spec.rotary is None else spec.rotary.dim
    angles = torch.outer(torch.arange(40.0), 10.0 ** -torch.linspace(0, 1, dim // 2))
    weights = {"cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1)}
    weights |= {name: torch.rand(spec.head_dim, generator=random).to(_dtype(spec)) for name in ("q_norm", "k_norm")}
    layer = made.backend.bind(spec, placed(weights, made.target), ops, ops.device)
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = [torch.randn(tokens, width, generator=random).to(_dtype(spec)) for tokens, _ in made.case.rows]

    def fused(x: Tensor, launch: Launch) -> Tensor:
        mixed: Tensor = layer.fused(x, launch.positions, made.caches, launch.plans[0])
        return mixed

    return torch.cat(made.by_row(rows, fused))


def _dtype(spec: LayerSpec) -> torch.dtype:
    return torch_dtype(spec.dtype)
