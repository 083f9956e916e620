"""What the platform makes of torch and of torch_neuronx, which are made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tessera.platform import CompiledGraphs, MemoryFigures, PlatformError, WorkerSpec
from tessera_neuron.platform import NeuronPlatform


class Made(NeuronPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with(count=4, said=None):
    """A torch whose device starts the runtime when its memory is asked for."""
    said = [] if said is None else said
    neuron = SimpleNamespace(
        device_count=lambda: count,
        set_device=said.append,
        get_device_name=lambda index: f"neuron:{index}",
        get_device_properties=lambda target: said.append("runtime") or SimpleNamespace(total_memory=96),
        memory_reserved=lambda target: 6,
    )
    return SimpleNamespace(__version__="2.14", neuron=neuron, device=lambda *of: of)


def config(max_model_len=4096, block_size=128, stages=1, **scheduler):
    defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_decode_tokens": 1}
    return SimpleNamespace(
        cache=SimpleNamespace(block_size=block_size),
        model=SimpleNamespace(max_model_len=max_model_len),
        scheduler=SimpleNamespace(**defaults | scheduler),
        parallel=SimpleNamespace(pipeline_parallel_size=stages),
    )


def test_opening_a_device_starts_no_runtime():
    said = []
    device = Made(torch_with(said=said)).open(3)
    assert (device.target, device.name, said) == (("neuron", 3), "neuron:3", [3])
    assert device.memory() == MemoryFigures(total=96, free=90)
    assert said == [3, "runtime"]


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(PlatformError, match="^there is no device 4: torch finds 4; "):
        Made(torch_with()).open(4)


def test_workers_learn_their_rank_from_the_environment():
    first, second = NeuronPlatform().placement(SimpleNamespace(world_size=2, host_size=2, threads=None))
    assert (first.devices, second.devices) == ((0,), (1,))
    assert (second.environment["LOCAL_RANK"], second.environment["LOCAL_WORLD_SIZE"]) == ("1", "2")


def test_without_torch_neuronx_the_platform_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    alone = WorkerSpec(rank=0, world_size=1, devices=(0,), shared=True)
    with pytest.raises(
        PlatformError, match=r"^platform 'neuron' needs torch_neuronx \(.*\); install the Neuron driver"
    ):
        NeuronPlatform().enter_process(alone)
    monkeypatch.setitem(sys.modules, "torch_neuronx", SimpleNamespace())
    with pytest.raises(PlatformError, match="^this torch-neuronx brings no device of torch; install version 2.13"):
        Made(SimpleNamespace()).enter_process(alone)


def test_launches_are_compiled_by_the_vendors_compiler():
    graphs = Made(torch_with()).graph_runner(SimpleNamespace())
    assert isinstance(graphs, CompiledGraphs)
    assert (graphs.backend, graphs.separate_planes) == ("neuron", True)


def test_stages_are_refused():
    platform = NeuronPlatform()
    assert platform.check(config(), None) == ()
    (problem,) = platform.check(config(stages=2), None)
    assert problem.text == "torch-neuronx sends nothing from rank to rank; use --tensor-parallel-size for all devices"
