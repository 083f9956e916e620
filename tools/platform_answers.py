"""What a platform answers where its device is, or what stands in for it: how much of the conformance kit its stage
runs, which ops it has kernels for, and how many shapes it compiles. For the table of tools/platform_table.py, which
runs it in the environment of the stage: `python -m tools.platform_answers NAME`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tessera.config import EngineConfig, ModelConfig, SchedulerConfig
from tessera.config.defaults import fill_defaults
from tessera.platform import CompiledGraphs, ExactShapes, GraphRunner, LayerCache, ModelFacts, ShapePolicy
from tessera.plugins import load_path
from tessera.testing import REFERENCE, AttentionCase
from tessera.testing.conformance import LEVELS, Case, Target, cases_of
from tessera.testing.conformance.native import NATIVE, PARTLY, PARTS, support

MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 8192, 64, 2048
"""With which shapes are counted, where the platform has no defaults of its own."""
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, DIM = 128256, 4096, 32, 32, 8, 128
"""Of Llama 3.1 8B."""


@dataclass(frozen=True)
class Place:
    """Where a platform is asked."""

    # Of tools/stages.toml.
    stage: str
    # Of its class.
    path: str
    # The module whose test_it_conforms() runs the kit; of several platforms, each parameter begins with one's name.
    conformance: str
    # Cases that the tests of a library of kernels try for all its platforms.
    elsewhere: tuple[str, ...] = ()
    # The function that gives those of a model runner of its own.
    shapes: str = ""


def _of_gpus(name: str) -> Place:
    elsewhere = "op/", "encoder/", "latent/", "sparse/triton-sparse-latent/", "state/"
    return Place("gpus", f"tests.platforms.fake_gpu:{name}", "tests.gpus.test_conformance", elsewhere)


def _of_vendor(stage: str, path: str) -> Place:
    return Place(stage, path, "tests.vendors.test_conformance")


PLACES: Mapping[str, Place] = {
    "cpu": Place("models", "tessera_cpu.platform:CpuPlatform", "platforms.cpu.tests.test_conformance"),
    "cuda": _of_gpus("Cuda"),
    "rocm": _of_gpus("Rocm"),
    "xpu": _of_gpus("Xpu"),
    "gaudi": _of_vendor("gaudi", "tessera_gaudi.platform:GaudiPlatform"),
    "ascend": _of_vendor("ascend", "tessera_ascend.platform:AscendPlatform"),
    "tpu": Place(
        "tpu", "tessera_tpu.platform:HostPlatform", "platforms.tpu.tests.test_conformance",
        shapes="tessera_tpu.shapes:bucketed",
    ),
    "neuron": _of_vendor("neuron", "tessera_neuron.platform:NeuronPlatform"),
    "spyre": _of_vendor("spyre", "tessera_spyre.platform:SpyrePlatform"),
    "torch-tpu": _of_vendor("torch-tpu", "tessera_xla.platform:TorchTpuPlatform"),
}  # fmt: skip


def answers(name: str) -> tuple[str, str, str]:
    """The cells of the table: conformance, ops, shapes."""
    place = PLACES[name]
    target = Target(place.path)
    return conformance(name, place), ops(target), shapes(target, place)


def conformance(name: str, place: Place) -> str:
    """The highest level of which the stage runs cases, and whether it runs all up to it. That they pass is the test's
    to say."""
    ran = {case.id: case for of, case in _parameters(import_module(place.conformance)) if of in (None, name)}
    level = max((case.level for case in ran.values()), key=LEVELS.index)
    missing = {case.id for case in cases_of(Target(place.path), level)} - set(ran)
    return level if all(one.startswith(place.elsewhere) for one in missing) else f"{level}, in part"


def _parameters(module: Any) -> Iterator[tuple[str | None, Case]]:
    (listed,) = (mark.args[1] for mark in module.test_it_conforms.pytestmark if mark.name == "parametrize")
    for one in listed:
        values = getattr(one, "values", one)
        yield (None, values) if isinstance(values, Case) else values


def ops(target: Target) -> str:
    """How many of core's ops, attention among them, run on kernels of the platform's: at every sample spec, at some, or
    at some of a composite's parts."""
    if target.brings_a_runner:
        return "by its runner"
    claimed = target.platform.capabilities.dtypes
    dtype = "bfloat16" if "bfloat16" in claimed else claimed[0]
    core = {*REFERENCE.names(), "attention"}
    found = Counter(cells[dtype] for name, cells in support(target) if name in core)
    return " / ".join(str(found[kind]) for kind in (NATIVE, PARTLY, PARTS))


def shapes(target: Target, place: Place) -> str:
    """How many launches are compiled or captured before the first step, and of which kind."""
    facts, config = served(target)
    graphs: Any = None
    if place.shapes:
        keys = load_path(place.shapes)(config).keys()
    else:
        policy: ShapePolicy = target.platform.shapes(facts, config) or ExactShapes()
        graphs = target.platform.graph_runner(target.device)
        keys = graphs.keys(policy, config.scheduler.max_num_seqs) if isinstance(graphs, GraphRunner) else ()
    how = "compiled" if place.shapes or isinstance(graphs, CompiledGraphs) else "captured"
    return f"{len(keys)} {how}: {_kinds(keys)}" if keys else "none"


def _kinds(keys: Any) -> str:
    kinds = Counter(key.kind for key in keys)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def served(target: Target) -> tuple[ModelFacts, EngineConfig]:
    claimed = target.platform.capabilities.dtypes
    dtype = "bfloat16" if "bfloat16" in claimed else claimed[0]
    cache = AttentionCase(((1, 1),), heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype).cache
    caches = tuple(LayerCache(layer, cache) for layer in range(LAYERS))
    facts = ModelFacts("LlamaForCausalLM", VOCAB, HIDDEN, LAYERS, MAX_MODEL_LEN, dtype, caches)
    config = EngineConfig(
        model=ModelConfig("", "served", {}, VOCAB, MAX_MODEL_LEN, dtype=dtype),
        scheduler=SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS),
        platform=target.path,
    )
    return facts, fill_defaults(config, target.platform.defaults(facts))[0]


if __name__ == "__main__":
    _, platform = sys.argv
    # Where the tests do so, what stands in for the vendor's modules comes with this.
    import_module(f"{PLACES[platform].conformance.rpartition('.')[0]}.conftest")
    print(json.dumps(answers(platform)))
