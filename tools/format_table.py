"""Generates docs/formats.md, which shows what becomes of a quantized weight on each kind of platform:
`python -m tools.format_table`. It needs Triton, whose kernels it asks as for a card of sm_90."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tessera.config.checkpoint import read_checkpoint
from tessera.gguf.blocks import BLOCK_TYPES
from tessera.ops import LinearSpec
from tessera.platform import Kernel, Part, Reason, Scheme, StoredWeight, WeightFormat
from tessera.plugins.extensions import weight_format
from tessera.quantization.encodings import scheme_of
from tests.platforms.packed_models import KINDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/formats.md"
FIXTURES = ROOT / "tests/fixtures/packed_words"
WEIGHT = Part("model.layers.0.mlp.up_proj.weight", (512, 1024))
SPEC = LinearSpec(512, 1024, "bfloat16")

FP8: Mapping[str, Mapping[str, object]] = {
    "blocks of 128 x 128": {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "dynamic": {"activation_scheme": "dynamic"},
    "static": {"activation_scheme": "static"},
}
"""Of the format fp8, fields of quantization_config."""

WRITERS: Mapping[str, str] = {
    "gptq": "auto-gptq 0.7.1",
    "awq": "auto-round 0.16.1",
    "bnb": "bitsandbytes 0.50.2",
    "ct": "compressed-tensors 0.20.0",
    "modelopt": "Model Optimizer 0.47.0",
}
"""By the first part of a fixture's name, who packed its weights."""

_HEADING = """# Quantized formats

What becomes of a weight of 512 x 1,024 in a model of bfloat16, on each kind of platform. `python -m tools.format_table`
writes this page, and a test compares it. [quantization.md](quantization.md) and [gguf.md](gguf.md) say what of each
format is read, and what is refused.

| Cell | Meaning |
|---|---|
| as stored | kernels multiply with the numbers of the file, which take as much memory as there |
| as stored, int8 | the same; activations are rounded to int8 |
| decoded | exactly, to bfloat16, when it is loaded: as much memory, and as fast, as an unquantized model |
| reference | core's reference converts the weight for each product, which is slow; decoded if it is declined |

The last column says who wrote the weights that the tests compare with their writer's own numbers, bit for bit
(`test_decoded.py` and `test_packed.py` in `tests/engine/platforms`, `tests/unit/gguf/test_block_types.py`).

| Format | CPU | GPUs with Triton | a platform without kernels | written by |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Kind:
    """A platform's answers: to a scheme, and its kernel for products."""

    scheme: Callable[[Scheme], Scheme | Reason]
    kernel: Kernel[LinearSpec] | None

    def cell(self, stored: StoredWeight | Part | Reason) -> str:
        assert not isinstance(stored, str), stored
        if isinstance(stored, Part):
            return "decoded"
        scheme = self.scheme(stored.scheme)
        if isinstance(scheme, str) or self.kernel is None:
            return "decoded" if isinstance(scheme, str) or stored.decoded is not None else "reference"
        if self.kernel.supports(replace(SPEC, scheme=scheme)) is not None:
            return "decoded"
        given = scheme.activation
        return "as stored" if given is None else f"as stored, {given.dtype.removesuffix('_e4m3')}"


def kinds() -> list[Kind]:
    """The CPU's, those of GPUs, and one of a platform without kernels."""
    from tessera_cpu.linear import Linear as CpuLinear
    from tessera_cpu.quantized import served
    from tessera_triton import TARGETS, Launcher
    from tessera_triton.fp8 import on_device
    from tessera_triton.products import Linear as TritonLinear

    card = TARGETS["sm_90"]
    return [
        Kind(served, CpuLinear()),
        Kind(partial(on_device, facts=card), TritonLinear(card, Launcher())),
        Kind(lambda scheme: scheme, None),
    ]


def formats() -> Iterator[tuple[str, StoredWeight | Part | Reason, str]]:
    """The name of each format, how it stores the weight, and who wrote what it was tried on."""
    for block in BLOCK_TYPES.values():
        if block.elements > 1 and block.name != "Q8_K":
            scheme = scheme_of(block)
            yield f"GGUF {block.name}", StoredWeight(scheme, {}, WEIGHT), "the gguf package"
    for folder in sorted(path.parent for path in FIXTURES.glob("*/config.json")):
        config = read_checkpoint(folder, weights=False).config
        writer = WRITERS[folder.name.partition("-")[0]]
        yield f"{config['quantization_config']['quant_method']}, {folder.name}", _stored(config), writer
    for name, (form, weights, activations) in KINDS.items():
        sizes: dict[str, Any] = {"group_size": 128} if weights["strategy"] == "group" else {}
        if weights["strategy"] == "block":
            sizes = {"block_structure": [128, 128]}
        given = (
            {**activations, "group_size": 128} if activations and activations["strategy"] == "group" else activations
        )
        group = {"targets": ["Linear"], "weights": {**weights, **sizes}, "input_activations": given}
        packed = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
        yield f"compressed-tensors, {name}", _stored({"quantization_config": packed}), "the tests"
    for name, fields in FP8.items():
        said: dict[str, object] = {"quant_method": "fp8", "fmt": "e4m3", **fields}
        yield f"fp8, {name}", _stored({"quantization_config": said}), "the tests"


def _stored(config: Mapping[str, object]) -> StoredWeight | Part | Reason:
    form: WeightFormat | None = weight_format(config)
    assert form is not None
    return form.stored(WEIGHT, "Linear", SPEC.dtype)


def page() -> str:
    columns = kinds()
    rows = ([name, *(kind.cell(stored) for kind in columns), writer] for name, stored, writer in formats())
    return _HEADING + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
