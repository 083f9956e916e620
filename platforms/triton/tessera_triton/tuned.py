"""Sizes of tiles that were measured, in place of those that tiles.py computes. They are data, tuned.json, by device and
version of Triton: compilers differ from version to version, and have compiled some sizes wrongly (ROCm/aiter #5428). So
each of them multiplies random numbers once, when a model is loaded, and is dropped if the definition gives others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.platform import LinearSpec, Packed
from tessera_triton.facts import DeviceFacts

log = logging.getLogger("tessera.triton")


class Tiling(NamedTuple):
    """m, n: tokens and outputs of a tile. parts: programs that share its inputs."""

    m: int
    n: int
    warps: int
    stages: int
    parts: int


Tilings = Mapping[int, Tiling]
"""By number of tokens, rounded up to a power of two."""

ERROR = 0.02
"""By how much of its row's largest number a result may be off. What is compiled wrongly is off by far more."""


def place_of(spec: LinearSpec) -> str:
    """What the table calls a product: "int4 group 128 by int8 token, 4096 x 14336, bfloat16"."""
    assert spec.scheme is not None, "only quantized products are tuned"
    weight, activation = spec.scheme.weight, spec.scheme.activation
    shared = weight.group or (f"{weight.block[0]}x{weight.block[1]}" if weight.block is not None else "")
    stored = f"{weight.dtype} {weight.granularity} {shared}".rstrip()
    zeros = "" if weight.symmetric else ", zero points"
    zeros += ", float16 scales" if weight.scale_dtype == "float16" else ""
    given = "" if activation is None else f" by {activation.dtype} {activation.granularity}"
    return f"{stored}{zeros}{given}, {spec.n} x {spec.k}, {spec.dtype}"


def measured(facts: DeviceFacts, version: str, spec: LinearSpec) -> Tilings:
    """The measured sizes of a product. version: of Triton."""
    found = _table().get(facts.name, {}).get(".".join(version.split(".")[:2]), {}).get(place_of(spec), {})
    return {int(tokens): Tiling(*sizes) for tokens, sizes in found.items()}


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(files("tessera_triton").joinpath("tuned.json").read_text(encoding="utf-8"))
    return table


def checked(
    spec: LinearSpec,
    tilings: Tilings,
    define: Callable[[LinearSpec, Tensor, Packed], Tensor],
    prepare: Callable[[LinearSpec, Packed], Packed],
    multiply: Callable[[Tensor, Packed, Tiling], Tensor],
    device: Any,
) -> Tilings:
    """The sizes with which a product gives what it is defined to. define: the op's reference. prepare: the kernel's.
    multiply: the kernel, with these sizes. device: torch's."""
    random = torch.Generator(device).manual_seed(0)
    raw = random_weight(spec, random, device)
    packed = prepare(spec, raw)
    kept = {}
    for tokens, tiling in tilings.items():
        x = torch.randn(tokens, spec.k, generator=random, device=device).to(getattr(torch, spec.dtype))
        expected = define(spec, x, raw).float()
        off = ((multiply(x, packed, tiling).float() - expected).abs() / expected.abs().amax(-1, keepdim=True)).amax()
        if bool(off <= ERROR):  # NaN is not
            kept[tokens] = tiling
        else:
            log.warning(
                "measured tiles are not used, because they give wrong numbers here: %s for %d tokens of %s",
                tiling, tokens, place_of(spec),
            )  # fmt: skip
    return kept


def random_weight(spec: LinearSpec, random: torch.Generator, device: Any) -> Packed:
    """The parts of a random weight, as core stores them."""
    return dict(_parts(spec, random, device))


def _parts(spec: LinearSpec, random: torch.Generator, device: Any) -> Iterator[tuple[str, Tensor]]:
    assert spec.scheme is not None, "only quantized products are tuned"
    for name, part in spec.scheme.parts.items():
        shape = [-(-size // per) for size, per in zip((spec.n, spec.k), part.per, strict=False)]
        dtype = getattr(torch, part.dtype)
        if name in ("scale", "input_scale"):
            yield name, (torch.rand(shape, generator=random, device=device) + 0.5).mul_(0.05).to(dtype)
        elif dtype.is_floating_point:
            yield name, torch.randn(shape, generator=random, device=device).to(dtype)
        elif name == "zero_point":
            yield name, torch.randint(-8, 8, shape, generator=random, device=device).to(dtype)
        else:
            info = torch.iinfo(dtype)
            yield name, torch.randint(info.min, info.max + 1, shape, generator=random, device=device).to(dtype)
    if spec.bias:
        yield "bias", torch.randn(spec.n, generator=random, device=device).to(getattr(torch, spec.dtype))
