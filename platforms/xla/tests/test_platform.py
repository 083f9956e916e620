"""What the platforms make of torch, torch_tpu and torch_xla, which are made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tessera.platform import CompiledGraphs, MemoryFigures, PlatformError, WorkerSpec
from tessera_xla.device import TorchXlaDevice
from tessera_xla.platform import TorchTpuPlatform, TorchXlaPlatform

ALONE = WorkerSpec(rank=0, world_size=1, devices=(0,), shared=True)


class Made(TorchTpuPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with_tpu():
    said = []
    properties = SimpleNamespace(name="TPU v6e", total_memory=1000)
    return SimpleNamespace(
        __version__="2.13",
        accelerator=SimpleNamespace(set_device_index=said.append),
        tpu=SimpleNamespace(get_device_properties=lambda index: properties),
        device=lambda *of: of,
        said=said,
    )


def xla(figures=None, said=None):
    """A torch_xla on the host; figures: of its memory, which PJRT's CPU does not have."""
    said = [] if said is None else said

    def memory(_device):
        if figures is None:
            raise RuntimeError("no figures")
        return figures

    return SimpleNamespace(
        device=lambda index: torch.device("cpu"),
        runtime=SimpleNamespace(device_type=lambda: "CPU"),
        sync=lambda wait=False: said.append(wait),
        core=SimpleNamespace(xla_model=SimpleNamespace(get_memory_info=memory)),
    )


def config(tensor_parallel_size=1, pipeline_parallel_size=1):
    return SimpleNamespace(
        cache=SimpleNamespace(block_size=128),
        model=SimpleNamespace(max_model_len=4096),
        scheduler=SimpleNamespace(max_num_seqs=32, max_num_batched_tokens=2048, max_decode_tokens=1),
        parallel=SimpleNamespace(
            tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size
        ),
    )


def test_what_core_holds_on_a_chip_is_not_free():
    library = torch_with_tpu()
    device = Made(library).open(2)
    assert (device.target, device.name, library.said) == (("tpu", 2), "TPU v6e", [2])
    assert device.memory() == MemoryFigures(total=1000, free=1000)
    with device.arena("weights") as arena:
        arena.hold(SimpleNamespace(nbytes=300))
    assert arena.nbytes == 300
    assert device.memory() == MemoryFigures(total=1000, free=700)
    assert device.peak(lambda: pytest.fail("it has no figures to compare")) is None


def test_without_the_package_the_platform_says_what_to_install(monkeypatch):
    for platform, package in ((TorchTpuPlatform(), "torch_tpu"), (TorchXlaPlatform(), "torch_xla")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(PlatformError, match=rf"needs {package} \(.*\); install the version for torch"):
            platform.enter_process(ALONE)


def test_torch_tpu_without_its_device_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tpu", SimpleNamespace())
    with pytest.raises(PlatformError, match="registered no device: it finds no TPU, or TORCH_DEVICE_BACKEND_AUTOLOAD"):
        Made(SimpleNamespace(__version__="2.13")).enter_process(ALONE)


def test_torch_tpu_compiles_launches_ahead_and_torch_xla_as_they_come():
    graphs = TorchTpuPlatform().graph_runner(SimpleNamespace())
    assert isinstance(graphs, CompiledGraphs)
    assert graphs.backend == "tpu"
    assert TorchXlaPlatform().graph_runner(SimpleNamespace()) is None


def test_all_tensors_of_torch_xla_are_of_inference(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace())
    platform = TorchXlaPlatform()
    platform.enter_process(ALONE)
    try:
        assert torch.is_inference(torch.zeros(1))
    finally:
        platform.inference.__exit__(None, None, None)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_several_devices_are_refused(sizes):
    assert TorchTpuPlatform().check(config(), None) == ()
    (problem,) = TorchTpuPlatform().check(config(*sizes), None)
    assert problem.text == "platform 'torch-tpu' uses one device; platform 'tpu' (tessera-tpu) uses several"


def test_what_torch_xla_launched_runs_before_it_is_copied():
    said = []
    device = TorchXlaDevice(torch, xla(said=said), 0)
    tensor = device.to_device(np.arange(3, dtype=np.int32))
    assert device.to_device(np.full(3, 7, np.int32), tensor) is tensor
    assert device.to_host(tensor).result().tolist() == [7, 7, 7]
    device.synchronize()
    assert said == [False, True]


def test_the_memory_of_torch_xla_s_device():
    assert TorchXlaDevice(torch, xla({"bytes_used": 3, "bytes_limit": 10}), 0).memory() == MemoryFigures(10, 7)
    host = TorchXlaDevice(torch, xla(), 0).memory()
    assert host.host
    assert 0 < host.free <= host.total
