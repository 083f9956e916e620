"""What the platform makes of torch and of SynapseAI's modules, which are made up."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tessera.platform import GateSpec, LinearSpec, MemoryFigures, PlatformError, WorkerSpec
from tessera.testing import REFERENCE
from tessera_gaudi import ops
from tessera_gaudi.platform import GaudiPlatform


class Made(GaudiPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with(*, count=8, graphs=True, said=None):
    said = [] if said is None else said

    class Graph:
        def replay(self, **how):
            said.append(("replay", how))

    class Capture:
        def __init__(self, graph):
            said.append("graph")

        def __enter__(self):
            said.append("begin")

        def __exit__(self, *raised):
            said.append("end")

    hpu = SimpleNamespace(
        device_count=lambda: count,
        set_device=said.append,
        get_device_name=lambda index: "GAUDI2",
        mem_get_info=lambda target: (90, 96),
        graph=Capture,
        **({"HPUGraph": Graph} if graphs else {}),
    )
    return SimpleNamespace(
        __version__="2.10", hpu=hpu, ops=SimpleNamespace(hpu=SimpleNamespace()), device=lambda *of: of
    )


def config(max_model_len=4096, block_size=None, **scheduler):
    defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_decode_tokens": 1}
    return SimpleNamespace(
        cache=SimpleNamespace(block_size=block_size),
        model=SimpleNamespace(max_model_len=max_model_len),
        scheduler=SimpleNamespace(**defaults | scheduler),
    )


def test_each_process_has_one_device_which_is_the_first():
    said = []
    device = Made(torch_with(said=said)).open(3)
    assert (device.target, device.name, said) == (("hpu", 0), "GAUDI2", [0])
    assert device.memory() == MemoryFigures(total=96, free=90)


def test_a_torch_without_devices_is_refused():
    with pytest.raises(PlatformError, match="^there is no device 0: torch finds 0; "):
        Made(torch_with(count=0)).open(0)


def test_workers_learn_their_rank_from_the_environment():
    first, second = GaudiPlatform().placement(SimpleNamespace(world_size=2, host_size=2, threads=None))
    assert (first.devices, second.devices) == ((0,), (1,))
    assert second.environment == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    (alone,) = GaudiPlatform().placement(SimpleNamespace(world_size=1, host_size=1, threads=None))
    assert alone.environment == {}


def test_without_the_vendors_modules_the_platform_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "habana_frameworks", None)
    with pytest.raises(PlatformError, match=r"^platform 'gaudi' needs habana_frameworks.torch \(.*\); install the "):
        GaudiPlatform().enter_process(WorkerSpec(rank=0, world_size=1, devices=(0,), shared=True))


def test_what_the_vendors_modules_lack_runs_on_the_reference_which_says_so():
    platform = Made(torch_with())
    (attention,) = platform.attention_backends()
    assert attention.supports(None) == "habana_frameworks.torch.hpex.kernels has no FusedSDPA here"
    found = platform.ops(REFERENCE)
    assert {name: found[name].kernel.supports(None) for name in ("rms_norm", "rotary", "experts", "linear")} == {
        "rms_norm": "habana_frameworks.torch.hpex.normalization has no FusedRMSNorm here",
        "rotary": "habana_frameworks.torch.hpex.kernels has no RotaryPosEmbeddingMode here",
        "experts": "torch has no op hpu::mixture_of_experts here",
        "linear": "torch has no op hpu::cast_to_fp8_v2 here",
    }


@pytest.fixture
def mode(monkeypatch):
    """mode(lazy): what SynapseAI's modules say."""

    def said(lazy):
        for name in ("", ".torch", ".torch.utils"):
            monkeypatch.setitem(sys.modules, f"habana_frameworks{name}", ModuleType(name))
        monkeypatch.setitem(
            sys.modules, "habana_frameworks.torch.utils.internal", SimpleNamespace(is_lazy=lambda: lazy)
        )

    return said


def test_graphs_are_captured_without_a_pool_and_replayed_without_waiting(mode):
    mode(True)
    said = []
    runner = Made(torch_with(said=said)).graph_runner(SimpleNamespace(synchronize=lambda: said.append("wait")))
    executable = runner.capture(None, lambda launch: said.append("forward") or "result", None, None)
    assert said == ["forward", "wait", "graph", "begin", "forward", "end"]
    assert (runner.pool, runner.replay(executable, None)) == (None, "result")
    assert said[-1] == ("replay", {"asynchronous": True})


def test_why_there_are_no_graphs_is_said(mode):
    why = "HPU graphs need SynapseAI's lazy mode: start with PT_HPU_LAZY_MODE=1"
    assert Made(torch_with()).graph_runner(None) == why
    mode(False)
    assert Made(torch_with()).graph_runner(None) == why
    assert Made(torch_with(graphs=False)).graph_runner(None) == "torch 2.10 has no graphs for hpu"


def test_each_ops_limits_are_told():
    spec = ops.NormSpec(64, "bfloat16", 1e-6, offset=1.0)
    assert ops.RMSNorm(object()).supports(spec) == "no offset to the weight"
    assert ops.Rotary(object(), object()).supports(ops.RotarySpec(64, 64)) is None


def test_weights_of_experts_are_divided_once():
    given = []
    kernel = ops.Experts(
        lambda **arguments: given.append((arguments["w12"], arguments["w3"])) or arguments["hidden_states"]
    )
    wide = LinearSpec(8, 4, "bfloat16", experts=3)
    experts = kernel.bind(
        ops.ExpertsSpec(wide, GateSpec(4, "bfloat16"), LinearSpec(4, 4, "bfloat16", experts=3), 2), None, None
    )
    x, weights, ids = torch.ones(2, 4), torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int32)
    layers = [({"weight": torch.zeros(3, 8, 4)}, {"weight": torch.zeros(3, 4, 4)}) for _ in range(2)]
    for gate_up, down in (*layers, *layers):
        experts(x, weights, ids, gate_up, down)
    for layer, (gate_up, down) in enumerate(layers):
        gate_up["weight"].fill_(1 + layer)
        down["weight"].fill_(3 + layer)
        assert [float(one.mean()) for one in given[layer][0]] == [1 + layer] * 3
        assert [float(one.mean()) for one in given[layer][1]] == [3 + layer] * 3
        assert given[layer][0] is given[2 + layer][0]
        assert given[layer][1] is given[2 + layer][1]
