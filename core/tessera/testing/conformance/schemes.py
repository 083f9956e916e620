"""Silver: products with weights of each quantization scheme that the platform accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.ops import LinearSpec
from tessera.ops.quantize import meaning, rounded
from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Reason
from tessera.platform.ops import Packed
from tessera.platform.platform import Platform
from tessera.platform.quantization import ActSpec, QuantSpec, Scheme, TensorSpec
from tessera.quantization.encodings import encoded_scheme
from tessera.quantization.schemes import candidates
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back, named
from tessera.testing.conformance.ops import same_place
from tessera.testing.conformance.target import Target
from tessera.testing.random_parts import random_parts

_SHAPES = ((40, 16), (130, 56))  # outputs, inputs
_SHAPES_IN_BLOCKS = (*_SHAPES, (300, 200))
_GROUP = 8
BLOCK = (128, 128)
"""The outputs and inputs that share a scale in published checkpoints. The shapes are multiples of neither."""
_TOKENS = (19, 1, 0, 5)
_SEEDS = (0, 1, 2, 3)
"""Of the weights that are multiplied, each of which is prepared over the one before."""
_ROUNDED_INPUT = 0.05  # tolerance, for results of about 1, if the platform quantizes activations in its own way


def _scheme(dtype: str, stored: str, granularity: str) -> Scheme:
    """A symmetric weight [n, k] with a float32 scale for each row, or for each group of a row. stored: torch's name."""
    group = _GROUP if granularity == "group" else 0
    scale = TensorSpec("float32", (1, group)) if group else TensorSpec("float32", (1,))
    return Scheme(QuantSpec(dtype, granularity, group), parts={"weight": TensorSpec(stored, (1, 1)), "scale": scale})


def _in_blocks(activation: ActSpec | None) -> Scheme:
    """fp8 weights with a float32 scale for each block."""
    parts = {"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", BLOCK)}
    return Scheme(QuantSpec("fp8_e4m3", "block", block=BLOCK), activation, parts=parts)


_ENCODED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4", "nvfp4")

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "int8-channel": _scheme("int8", "int8", "channel"),
        "int8-group": _scheme("int8", "int8", "group"),
        "fp8_e4m3-channel": _scheme("fp8_e4m3", "float8_e4m3fn", "channel"),
        "fp8_e4m3-block": _in_blocks(None),
        "fp8_e4m3-block-groups": _in_blocks(ActSpec("fp8_e4m3", granularity="group", group=BLOCK[1])),
        "int8-token": candidates("int8", _GROUP)[0],
        **{f"int4-group-{group}": candidates("int4", group)[0] for group in (64, 32, 8)},
        **{name: encoded_scheme(name) for name in _ENCODED},
    }
)
"""The schemes that are offered to Platform.scheme, by name. int8-token and int4 are those of --quantization, and the
last ones the blocks of GGUF files."""


def scheme_cases(target: Target) -> Iterator[Case]:
    """One per scheme and dtype. If the platform leaves scheme() as it is, its linear alone decides."""
    if target.brings_a_runner or (not _overrides(target) and target.ops["linear"].kernel is None):
        own = "has its own model runner" if target.brings_a_runner else "does not override scheme()"
        yield Case("scheme", "silver", "scheme", lambda: absent(f"the platform {own}"))
        return
    for name, scheme in SCHEMES.items():
        for dtype in target.platform.capabilities.dtypes:
            yield Case(f"scheme/{name}-{dtype}", "silver", "scheme", partial(_check, target, name, scheme, dtype))


def _overrides(target: Target) -> bool:
    return type(target.platform).scheme is not Platform.scheme


def _check(target: Target, name: str, scheme: Scheme, dtype: str) -> Verdict:
    taken = target.platform.scheme(scheme)
    if isinstance(taken, str):
        return falls_back(taken)
    declined, encoded = set[Reason](), scheme.weight.encoding is not None
    for n, k in _shapes(scheme):
        for bias in (False, True):
            spec, reason = _chosen(target, LinearSpec(n, k, dtype, bias=bias), taken, scheme)
            if reason is None or (_overrides(target) and not encoded):
                _try(target, name, spec, scheme)
            declined.update({reason} if reason is not None else {})
    if not declined:
        return PASSED
    return falls_back("; ".join(sorted(declined)) + ("; weights are decoded when they are loaded" if encoded else ""))


def _shapes(scheme: Scheme) -> Iterator[tuple[int, int]]:
    """Outputs and inputs, which are whole groups, or one block of an encoding and several."""
    whole = scheme.granule(1)
    for number, (n, k) in enumerate(_SHAPES if scheme.weight.block is None else _SHAPES_IN_BLOCKS):
        yield n, (1 + 2 * number) * whole if scheme.weight.encoding is not None else -(-k // whole) * whole


def _chosen(target: Target, spec: LinearSpec, taken: Scheme, offered: Scheme) -> tuple[LinearSpec, Reason | None]:
    """Chooses as core does: the platform's own scheme if its kernel supports it, else the offered one, and why."""
    kernel, own = target.ops["linear"].kernel, replace(spec, scheme=taken)
    reason = "no kernel" if kernel is None else kernel.supports(own)
    return (own, None) if reason is None else (replace(spec, scheme=offered), reason)


def _try(target: Target, name: str, spec: LinearSpec, offered: Scheme) -> None:
    """Compares products with the definition. The reference computes them if no kernel supports the spec."""
    assert spec.scheme is not None
    ops, place = target.bound(), target.device.target
    call = ops.bind("linear", spec)
    limit = TOLERANCES[spec.dtype] if spec.scheme.activation == offered.activation else _ROUNDED_INPUT
    packed: Packed | None = None
    for seed, tokens in zip(_SEEDS, _TOKENS, strict=True):
        raw, weight = _raw(replace(spec, scheme=offered), seed)
        before = packed
        packed = ops.prepare("linear", spec, {part: tensor.to(place) for part, tensor in raw.items()}, before)
        moved = [part for part, tensor in (before or {}).items() if not same_place(packed.get(part), tensor)]
        if moved:
            raise ConformanceError(
                f"linear of {name}, {spec.dtype}: prepare(into=) gives other tensors than those to overwrite: "
                f"{', '.join(moved)}"
            )
        x = torch.randn(tokens, spec.k, generator=torch.Generator().manual_seed(tokens)).to(torch_dtype(spec.dtype))
        found = call(x.to(place), packed)
        target.device.synchronize()
        expected = _meant(x, spec, offered) @ weight.T + (raw["bias"].double() if spec.bias else 0.0)
        text = difference(found.cpu(), expected.to(x.dtype), limit)
        if text is not None:
            said = f"linear of {name} {spec.n} x {spec.k}{' and bias' if spec.bias else ''}, {spec.dtype}"
            said += "" if before is None else f", prepared over another weight, for the {seed}. time"
            raise ConformanceError(
                f"{said}, {tokens} tokens: {text}", named(x=x, raw=raw, result=found, expected=expected)
            )


def _meant(x: Tensor, spec: LinearSpec, offered: Scheme) -> Tensor:
    """x as the offered scheme rounds it, float64."""
    if offered.activation is None:
        return x.double()
    return rounded(x.float(), offered.activation, None).double()


def _raw(spec: LinearSpec, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Random parts of a weight in the spec's scheme, and the weight that they stand for, [n, k] float64."""
    assert spec.scheme is not None
    random = torch.Generator().manual_seed(spec.n + seed)
    parts = random_parts(torch.randn(spec.n, spec.k, generator=random) * spec.k**-0.5, spec.scheme, random)
    weight = meaning(parts, spec.scheme).double()
    if spec.bias:
        parts["bias"] = torch.randn(spec.n, generator=random).to(torch_dtype(spec.dtype))
    return parts, weight
