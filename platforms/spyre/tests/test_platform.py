"""What the platform makes of torch and of torch_spyre, which are made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tessera.platform import CompiledGraphs, PlatformError, WorkerSpec
from tessera_spyre.device import Later
from tessera_spyre.platform import SpyrePlatform


class Made(SpyrePlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with(count=2, said=None):
    said = [] if said is None else said
    used = iter([10, 60])
    memory = SimpleNamespace(
        reset_peak_memory_stats=lambda target: said.append("reset"),
        memory_allocated=lambda target: next(used),
        max_memory_allocated=lambda target: next(used),
    )
    spyre = SimpleNamespace(
        device_count=lambda: count,
        set_device=said.append,
        synchronize=lambda target: said.append("wait"),
        current_stream=lambda target: SimpleNamespace(query=lambda: True),
        memory=memory,
    )
    return SimpleNamespace(__version__="2.13", spyre=spyre, device=lambda *of: of)


def config(max_model_len=2048, block_size=64, **scheduler):
    defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 512, "max_decode_tokens": 1}
    return SimpleNamespace(
        cache=SimpleNamespace(block_size=block_size),
        model=SimpleNamespace(max_model_len=max_model_len),
        scheduler=SimpleNamespace(**defaults | scheduler),
    )


def test_a_device_is_made_current_and_measured():
    said = []
    device = Made(torch_with(said=said)).open(1)
    assert (device.target, device.name, said) == (("spyre", 1), "Spyre 1", [1])
    assert device.peak(lambda: said.append("run")) == 50
    assert said == [1, "reset", "run", "wait"]


def test_more_cards_than_there_are_is_refused():
    with pytest.raises(PlatformError, match="^there is no Spyre card 2: torch finds 2; lower --tensor-parallel-size"):
        Made(torch_with()).open(2)


def test_a_copy_to_the_host_is_made_when_it_is_asked_for():
    asked = []
    tensor = SimpleNamespace(cpu=lambda: asked.append(1) or SimpleNamespace(numpy=lambda: np.arange(3)))
    later = Later(tensor, SimpleNamespace(query=lambda: False))
    assert (later.done(), asked) == (False, [])
    assert later.result().tolist() == [0, 1, 2]


def test_workers_learn_their_rank_from_the_environment():
    first, second = SpyrePlatform().placement(SimpleNamespace(world_size=2, host_size=2, threads=None))
    assert (first.devices, second.devices) == ((0,), (1,))
    assert (second.environment["RANK"], second.environment["WORLD_SIZE"]) == ("1", "2")


def test_without_torch_spyre_the_platform_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_spyre", None)
    alone = WorkerSpec(rank=0, world_size=1, devices=(0,), shared=True)
    with pytest.raises(PlatformError, match=r"^platform 'spyre' needs torch_spyre \(.*\); build it for torch"):
        SpyrePlatform().enter_process(alone)
    monkeypatch.setitem(sys.modules, "torch_spyre", SimpleNamespace())
    with pytest.raises(PlatformError, match="registered no device; unset TORCH_DEVICE_BACKEND_AUTOLOAD"):
        Made(SimpleNamespace()).enter_process(alone)


def test_launches_are_compiled_by_torchs_compiler():
    graphs = Made(torch_with()).graph_runner(SimpleNamespace())
    assert isinstance(graphs, CompiledGraphs)
    assert graphs.backend == "inductor"


def test_shapes_are_whole_sticks_that_double():
    shapes = SpyrePlatform().shapes(None, config())
    assert (shapes.decode_rows, list(shapes.prompt_tokens)) == ((1, 2, 4), [64, 128, 256, 512])
    assert list(shapes.blocks) == [4, 8, 16, 32]
    assert len(shapes.keys()) == (3 + 4) * 4
    rules = shapes.rules()
    assert (rules.mix_prefill_decode, rules.max_tokens_per_request) == (False, 512)


def test_there_are_no_quantized_weights():
    assert SpyrePlatform().scheme(object()) == "weights are in float16 alone"
