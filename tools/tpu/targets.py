"""Compiles a step for TPUs that are not there, with libtpu: `python -m tools.tpu tools.tpu.targets`. For each topology,
on one chip and on four, it compiles what the runner would for a decode step and for a step with prompts, and checks
what the compiler says of it, also against the table in docs/evidence/platforms.md; for the first one, it compiles
sampling too.
Names, such as v6e:2x2, choose some of the topologies; --day takes a quarter of what is compiled for them.

The model is abstract: it has the layers of Llama 3.1 8B, of which two are compiled, since all are alike."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import use_abstract_mesh

from tessera.config import build_config
from tessera.layers.build import TENSOR_GROUP
from tessera.platform import Alone, CacheGroup, CachePlan, LaunchKey
from tessera.runner.meta import MetaDevice, Shapes
from tessera.runner.services import Services
from tessera.testing import ReferencePlatform
from tessera_tpu.attention import PagedAttention, block_of
from tessera_tpu.inputs import launch_fields
from tessera_tpu.kernels import Pallas
from tessera_tpu.mesh import DeviceMesh
from tessera_tpu.model import TracedModel
from tessera_tpu.ops import compiled
from tessera_tpu.sampling import sample_fields, words

TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
LAYERS, ROWS, TOKENS, CACHED, MAX_LENGTH = 2, 64, 512, 2112 * 32, 8192
VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, DIM = 128256, 4096, 14336, 32, 8, 128
MODEL = MappingProxyType(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "max_position_embeddings": MAX_LENGTH, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }
)  # fmt: skip
DECODE, PROMPTS = LaunchKey("decode", ROWS, 1, 1, ROWS), LaunchKey("mixed", ROWS, TOKENS, 1, TOKENS)
STEPS = {
    "decode": (DECODE, "auto"), "prompts": (PROMPTS, "auto"),
    "decode, int8 cache": (DECODE, "int8"), "prompts, int8 cache": (PROMPTS, "int8"),
}  # fmt: skip
"""Of each, its launch and --kv-cache-dtype."""
SAMPLING = "sampling"
"""What is compiled like a step, once for each number of chips."""
PLACES = {1: tuple(STEPS), 4: ("decode", "decode, int8 cache")}
"""By number of chips, the steps that are compiled for them."""
DAYS = 4
"""Over which --day spreads what is compiled."""
WORKSPACE = 96 << 20
"""Bytes that a step of these may take beside weights and cache."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler makes of a step. Sizes and operations are those of one chip."""

    topology: str
    chips: int
    step: str
    # For compiling it.
    seconds: float
    # Floating-point operations of a step, as the compiler counts them, without the kernels.
    flops: float
    # Floating-point operations of the model's products.
    expected: float
    # Read and written by a step, as the compiler counts them.
    nbytes: float
    # Bytes of memory beside arguments and results.
    temporary: int
    # Bytes of results that take the memory of arguments.
    donated: int
    # All-reduces of a step.
    collectives: int

    @property
    def place(self) -> str:
        """How its row of the table begins."""
        return f"| {self.topology} | {self.chips} | {self.step} |"

    @property
    def row(self) -> str:
        figures = (
            f"{self.flops / 1e9:.2f}", f"{self.expected / 1e9:.2f}", f"{self.nbytes / 1e6:.0f}",
            f"{self.temporary / 1e6:.1f}", self.collectives,
        )  # fmt: skip
        return f"{self.place} {' | '.join(map(str, figures))} |"


PAGE = Path(__file__).parents[2] / "docs/evidence/platforms.md"
HEAD = "| Topology | Chips | Step | Gflop | Of products | MB read and written | MB temporary | All-reduces |\n"


class Abstract:
    """The model on a mesh, with shapes instead of weights. kv: --kv-cache-dtype."""

    def __init__(self, mesh: DeviceMesh, folder: Path, kv: str) -> None:
        self.mesh = mesh
        folder.joinpath("config.json").write_text(json.dumps(dict(MODEL)), encoding="utf-8")
        config = build_config(
            model=str(folder), platform="tessera.testing:ReferencePlatform", load_format="dummy",
            skip_tokenizer_init=True, dtype="bfloat16", kv_cache_dtype=kv,
        )  # fmt: skip
        device, platform = MetaDevice(ReferencePlatform().open(0)), ReferencePlatform()
        services = Services(config, [device], {TENSOR_GROUP: Alone()}, platform, source=Shapes("bfloat16"))
        self.attention = PagedAttention(Pallas(mesh))
        model = services.build_model(compiled(services.reference()), [self.attention])
        self.names: dict[int, str] = {}
        weights = services.load_weights(self._named)
        self.model = TracedModel(model, services.reference(), [*weights, self.attention.tables])
        spec = model.facts.caches[0].spec
        size = block_of(spec)
        group = CacheGroup(tuple(range(LAYERS)), "paged", size, 0, CACHED // size)
        self.plan = CachePlan((group,), ROWS, MAX_LENGTH)
        layout = self.attention.kv_cache_layout(spec, size)
        shapes = [((group.num_blocks, *plane.shape), plane.dtype) for plane in layout.planes]
        self.caches = [tuple(jax.ShapeDtypeStruct(*one, sharding=mesh.planes) for one in shapes) for _ in range(LAYERS)]
        self.values = [self._struct(tensor) for tensor in self.model.tensors]

    def _named(self, layer: str, part: str, tensor: Any) -> Any:
        self.names[id(tensor)] = layer
        return tensor

    def _struct(self, tensor: Any) -> Any:
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.mesh.weight(self.names.get(id(tensor), "norm"), shape))

    def ints(self, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "int32", sharding=self.mesh.whole)

    def forward(self, key: LaunchKey) -> Any:
        flat = self.ints(launch_fields(key, self.plan).size)
        given = self.values, self.caches, self.ints(ROWS + 1, MAX_LENGTH + 1), flat
        places = [tuple(self.mesh.planes for _ in planes) for planes in self.caches], self.mesh.whole, self.mesh.whole
        call = partial(self.model.forward, key, self.plan)
        return jax.jit(call, donate_argnums=(1, 2), out_shardings=places).lower(*given).compile()

    def sample(self) -> Any:
        hidden = jax.ShapeDtypeStruct((ROWS, HIDDEN), "bfloat16", sharding=self.mesh.whole)
        flat = self.ints(sample_fields(ROWS).size)
        bits = self.ints(ROWS, words(VOCAB))
        given = self.values, self.ints(ROWS + 1, MAX_LENGTH + 1), hidden, flat, bits
        return jax.jit(self.model.sample, donate_argnums=1, out_shardings=self.mesh.whole).lower(*given).compile()


def products(key: LaunchKey) -> int:
    """Floating-point operations of the model's products in a launch, but the head. The last layer's are those of the
    tokens whose hidden states become logits, from its attention on."""
    before = HIDDEN * (HEADS + 2 * KV_HEADS) * DIM
    after = HEADS * DIM * HIDDEN + 3 * HIDDEN * INNER
    return 2 * (LAYERS * key.tokens * before + ((LAYERS - 1) * key.tokens + key.num_samples) * after)


def programs(names: Sequence[str], day: date | None) -> dict[tuple[str, int], list[str]]:
    """By topology and number of chips what is compiled for them: steps, and sampling for the first topology, since it
    takes as long as all steps. day: whose share of that; without one all."""
    every = [((name, chips), step) for name in names for chips, steps in PLACES.items() for step in steps]
    every += [((names[0], chips), SAMPLING) for chips in PLACES]
    chosen: dict[tuple[str, int], list[str]] = {}
    for place, step in every if day is None else every[day.toordinal() % DAYS :: DAYS]:
        chosen.setdefault(place, []).append(step)
    return chosen


def compile_for(topology: str, chips: int, steps: Sequence[str]) -> Iterator[Compiled]:
    """steps: those compiled, and sampling. Raises AssertionError for what the runner relies on."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[:chips]
    mesh = DeviceMesh(devices)
    with tempfile.TemporaryDirectory() as folder, use_abstract_mesh(mesh.mesh.abstract_mesh):  # which kernels ask
        for step in steps:
            key, kv = STEPS.get(step, STEPS["decode"])
            abstract = Abstract(mesh, Path(folder), kv)
            if step == SAMPLING:
                abstract.sample()
                print(f"{SAMPLING} compiled for {chips} chips of {topology}", flush=True)
                continue
            caches = sum(prod(one.shape) * one.dtype.itemsize for planes in abstract.caches for one in planes)
            began = time.perf_counter()
            program = abstract.forward(key)
            seconds = time.perf_counter() - began
            text, memory, cost = program.as_text(), program.memory_analysis(), program.cost_analysis()
            found = Compiled(
                topology, chips, step, seconds, cost["flops"], products(key) / chips, cost["bytes accessed"],
                memory.temp_size_in_bytes, memory.alias_size_in_bytes,
                len(re.findall(r"\ball-reduce(?:-start)?\(", text)),
            )  # fmt: skip
            shapes = {mesh.planes.shard_shape(plane.shape) for planes in abstract.caches for plane in planes}
            check(found, text, caches // chips, shapes)
            yield found


def check(step: Compiled, text: str, caches: int, shapes: Collection[tuple[int, ...]]) -> None:
    """text: the program. caches, shapes: of one chip, the bytes of its caches and the shapes of their planes."""
    what = f"{step.topology}, {step.chips} chips, {step.step}"
    for kernel in ("ragged_paged_attention", "kv_update"):
        number = len(re.findall(rf"%{kernel}[.\d]* = .*custom-call\(", text))
        assert number == LAYERS, f"{what}: {number} calls of {kernel}, expected {LAYERS}"
    for shape in shapes:
        moved = re.search(rf"\[{','.join(map(str, shape))}\]\{{[^}}]*S\(1\)", text)
        assert moved is None, f"{what}: planes of {shape} are copied into the fast memory"
    kept = caches + 4 * (ROWS + 1) * (MAX_LENGTH + 1)  # and the tokens of all rows
    assert step.donated >= kept, f"{what}: {step.donated} bytes are updated in place, of {kept}"
    assert step.temporary < WORKSPACE, f"{what}: a step takes {step.temporary} bytes beside weights and cache"
    assert 1.0 <= step.flops / step.expected < 1.1, (
        f"{what}: {step.flops:.3g} operations, and products have {step.expected:.3g}"
    )
    assert (step.collectives > 0) == (step.chips > 1), f"{what}: {step.collectives} all-reduces"


def renewed(page: str, step: Compiled) -> str:
    """The page with the step's row."""
    head, table = page.split(HEAD)
    rows, end, after = table.partition("\n\n")
    places = [line.startswith(step.place) for line in rows.splitlines()]
    assert sum(places) == 1, f"docs/evidence/platforms.md has {sum(places)} rows for {step.place}"
    kept = (step.row if own else line for line, own in zip(rows.splitlines(), places, strict=True))
    return f"{head}{HEAD}{chr(10).join(kept)}{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.tpu tools.tpu.targets", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the rows of docs/evidence/platforms.md")
    parser.add_argument("--day", type=date.fromisoformat, help="YYYY-MM-DD, whose share of all is compiled")
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY")
    asked = parser.parse_args(arguments)
    known = page = PAGE.read_text(encoding="utf-8")
    print(HEAD, end="")
    for (topology, chips), steps in programs(asked.topologies or TOPOLOGIES, asked.day).items():
        for found in compile_for(topology, chips, steps):
            print(f"{found.row} {found.seconds:.1f} s", flush=True)
            page = renewed(page, found)
    if asked.write:
        PAGE.write_text(page, encoding="utf-8")
    elif page != known:
        print("docs/evidence/platforms.md has other figures; --write renews them.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
