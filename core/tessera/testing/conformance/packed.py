"""Silver: a product with weights that are read from a quantized checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.loader.checkpoint import Safetensors
from tessera.loader.load import load_weights
from tessera.ops.quantize import rounded
from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import ActSpec, WeightFormat
from tessera.quantization.formats.compressed_tensors import compressed_tensors
from tessera.quantization.formats.fp8 import fp8
from tessera.quantization.negotiation import QuantizedCheckpoint
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back, named
from tessera.testing.conformance.target import Target

_SOURCES: Mapping[str, int] = MappingProxyType({"q_proj": 42, "k_proj": 27})
"""Weights of one product, and their outputs; neither number is a multiple of 8, the elements in a packed word."""
_K = 96
_TOKENS = (19, 1, 0)
_INPUT_SCALE = 1 / 64
_ROUNDED_INPUT = 0.05  # the tolerance where the platform quantizes activations that the checkpoint does not


@dataclass(frozen=True)
class _PackedForm:
    form: str  # `format` in quantization_config
    bits: int
    group: int  # the inputs that share a scale; 0 for a scale per output, -1 for a single one
    symmetric: bool = True
    activation: Mapping[str, Any] | None = None  # input_activations in quantization_config
    # The outputs and inputs that share a scale; the weight is then stored in the format fp8.
    block: tuple[int, int] | None = None
    strategy: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", {0: "channel", -1: "tensor"}.get(self.group, "group"))

    @property
    def number(self) -> str:
        return "float" if self.form in ("float-quantized", "fp8") else "int"

    @property
    def static(self) -> bool:
        return self.activation is not None and not self.activation["dynamic"]

    def sharing(self, n: int) -> tuple[int, int]:
        """How many outputs and inputs of a weight with n outputs share a scale."""
        return self.block or {"tensor": (n, _K), "channel": (1, _K)}.get(self.strategy, (1, self.group))

    @property
    def reader(self) -> WeightFormat:
        return compressed_tensors(self.config) if self.block is None else fp8({"weight_block_size": list(self.block)})

    @property
    def config(self) -> Mapping[str, Any]:
        """quantization_config."""
        weights = {"num_bits": self.bits, "type": self.number, "symmetric": self.symmetric, "strategy": self.strategy}
        weights |= {"group_size": self.group} if self.group > 0 else {}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": self.activation}
        return {"format": self.form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


_TOKEN: Mapping[str, Any] = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
_STATIC: Mapping[str, Any] = {"num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True}

KINDS: Mapping[str, _PackedForm] = MappingProxyType(
    {
        "int8": _PackedForm("int-quantized", 8, 0, activation={**_TOKEN, "type": "int"}),
        "int8-static": _PackedForm("int-quantized", 8, -1, activation={**_STATIC, "type": "int"}),
        "int4-group-32": _PackedForm("pack-quantized", 4, 32),
        "int4-group-32-asymmetric": _PackedForm("pack-quantized", 4, 32, symmetric=False),
        "int4-channel": _PackedForm("pack-quantized", 4, 0),
        "fp8": _PackedForm("float-quantized", 8, 0, activation={**_TOKEN, "type": "float"}),
        "fp8-static": _PackedForm("float-quantized", 8, -1, activation={**_STATIC, "type": "float"}),
        "fp8-blocks": _PackedForm("fp8", 8, 0, block=(16, 40)),
        "fp8-blocks-128": _PackedForm("fp8", 8, 0, block=(128, 128)),
    }
)
"""The kinds of weights that are tried, by name."""


def packed_cases(target: Target) -> Iterator[Case]:
    """One case for each kind and dtype."""
    if target.brings_a_runner:
        yield Case("packed", "silver", "packed", lambda: absent("the platform runs models its own way"))
        return
    for name, kind in KINDS.items():
        for dtype in target.platform.capabilities.dtypes:
            yield Case(f"packed/{name}-{dtype}", "silver", "packed", partial(_check, target, name, kind, dtype))


def _check(target: Target, name: str, kind: _PackedForm, dtype: str) -> Verdict:
    weights = QuantizedCheckpoint(name, kind.reader, target.platform.scheme)
    build = Build(target.bound(), target.device, dtype, (), weights=weights)
    linear = Linear(build, [WeightShard(source, n, _K) for source, n in _SOURCES.items()], bias=True)
    spec = linear.single
    tensors, meant, input_scale = _written(kind)
    if spec.scheme is None:  # decoded
        meant = meant.to(torch_dtype(dtype)).double()
    with TemporaryDirectory() as folder, target.device.arena("weights") as arena:
        save_file(tensors, Path(folder) / "model.safetensors")
        load_weights(build.parameters, Safetensors(folder), dtype, target.device, arena, lambda _: None)
    activation = _activation(kind) if spec.scheme is not None else None
    limit = TOLERANCES[dtype] if spec.scheme is None or spec.scheme.activation == activation else _ROUNDED_INPUT
    bias = torch.cat([tensors[f"{source}.bias"] for source in _SOURCES]).to(torch_dtype(dtype))
    for tokens in _TOKENS:
        x = torch.randn(tokens, _K, generator=torch.Generator().manual_seed(tokens)).to(torch_dtype(dtype))
        found = linear(x.to(target.device.target))
        target.device.synchronize()
        expected = rounded(x.float(), activation, input_scale).double() @ meant.T + bias.double()
        text = difference(found.cpu(), expected.to(x.dtype), limit)
        if text is not None:
            raise ConformanceError(
                f"linear with packed weights ({name}) of {_K} inputs, {dtype}, {tokens} tokens: {text}",
                named(x=x, weight=meant, result=found, expected=expected),
            )
    if spec.scheme is None:
        (declined,) = set(weights.reasons.values())
        return falls_back(f"decoded when it is loaded: {declined}")
    kernel = build.ops.ops["linear"].kernel
    reason = "no kernel" if kernel is None else kernel.supports(spec)
    return PASSED if reason is None else falls_back(reason)


def _activation(kind: _PackedForm) -> ActSpec | None:
    if kind.block is not None:
        return ActSpec("fp8_e4m3", granularity="group", group=kind.block[1])
    if kind.activation is None:
        return None
    spec = ActSpec("fp8_e4m3" if kind.number == "float" else "int8", granularity="token")
    return replace(spec, granularity="tensor", static=True) if kind.static else spec


def _written(kind: _PackedForm) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The tensors of a checkpoint, the weight that they mean, float64 [n, k], and the scale of the input."""
    tensors, meant = dict[str, Tensor](), []
    for number, (source, n) in enumerate(_SOURCES.items()):
        random = torch.Generator().manual_seed(number)
        rows, inputs = kind.sharing(n)
        shape = -(-n // rows), -(-_K // inputs)
        elements, scale = _elements(kind, n, random), _scales(kind, shape, random)
        zero = torch.zeros(shape, dtype=torch.int64)
        if not kind.symmetric:
            zero = torch.randint(-8, 8, shape, generator=random)
            tensors[f"{source}.weight_zero_point"] = _words(zero.T).T.contiguous()
        zeros, scales = (one.repeat_interleave(rows, 0).repeat_interleave(inputs, 1)[:n, :_K] for one in (zero, scale))
        meant.append((elements.double() - zeros) * scales.double())
        packed = {"weight_packed": _words(elements), "weight_shape": torch.tensor([n, _K])} if kind.bits == 4 else {}
        stored = packed or {"weight": elements}
        name = "weight_scale" if kind.block is None else "weight_scale_inv"
        stored |= {name: scale.flatten() if kind.strategy == "tensor" else scale}
        stored |= {"bias": torch.randn(n, generator=random)}
        if kind.static:
            stored["input_scale"] = torch.tensor([_INPUT_SCALE / (number + 1)])  # the largest is that of both
        tensors |= {f"{source}.{part}": tensor for part, tensor in stored.items()}
    return tensors, torch.cat(meant), torch.tensor(_INPUT_SCALE)


def _elements(kind: _PackedForm, n: int, random: torch.Generator) -> Tensor:
    """[n, k], random over the whole range of the dtype."""
    if kind.number == "float":
        return (torch.randn(n, _K, generator=random) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    half = 1 << kind.bits - 1
    return torch.randint(-half, half, (n, _K), generator=random, dtype=torch.int8)


def _scales(kind: _PackedForm, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Float32, but exact in every dtype; results are about 1."""
    step = 2.0**-10 if kind.bits == 4 else 2.0**-14
    return torch.randint(8, 16, shape, generator=random) * step


def _words(numbers: Tensor) -> Tensor:
    """[n, m] of -8 to 7 -> int32 [n, m / 8]; the first number is in the lowest bits."""
    wide = torch.nn.functional.pad(numbers.to(torch.uint8) + 8 & 15, (0, -numbers.shape[1] % 8))
    return (wide[:, 0::2] | wide[:, 1::2] << 4).contiguous().view(torch.int32)
