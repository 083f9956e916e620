"""The base of platforms, on torches that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tessera.platform import CrossSpec, LaunchKey, LayerCache, PlatformError, WorkerSpec
from tessera_triton import TARGETS, DeviceFacts, Launcher, facts, installed
from tessera_triton import platform as platform_module
from tessera_triton.graphs import MIXED, mixed_tokens, rows
from tessera_triton.platform import TritonPlatform

REFERENCE = object()


class Graph:
    def __init__(self, said):
        self.said = said

    def replay(self):
        self.said.append("replay")

    def pool(self):
        return "the pool"


def made_up(said=None, *, graphs=True):
    """A torch with two devices of torch.xpu. said: what was captured and replayed."""
    said = [] if said is None else said

    class Capture:
        def __init__(self, graph, pool):
            said.append(f"pool {pool}")

        def __enter__(self):
            said.append("begin")

        def __exit__(self, *raised):
            said.append("end")

    devices = SimpleNamespace(
        device_count=lambda: 2, set_device=said.append, get_device_name=lambda index: f"card {index}", graph=Capture
    )
    if graphs:
        devices.XPUGraph = lambda: Graph(said)
    return SimpleNamespace(xpu=devices, __version__="2.9")


class Made(TritonPlatform):
    name, kind, compiler, collectives = "made", "xpu", "nvidia", "xccl"

    def __init__(self, found=TARGETS["sm_90"], torch=None):
        self.found, self.torch = found, torch or made_up()
        self.own = Launcher()

    def open(self, index):
        return SimpleNamespace(name=self._make_current(index))

    def _facts(self) -> DeviceFacts | None:
        return self.found

    def _new_launcher(self):
        return self.own


def test_kernels_and_attention_are_bound_to_the_facts_and_the_launcher(monkeypatch):
    monkeypatch.setattr(platform_module, "replace", lambda reference, **own: own)
    platform = Made()
    backends = platform.attention_backends()
    latents, states = ["triton-latent", "triton-sparse-latent"], ["delta-net", "mamba2", "short-convolution"]
    names = ["triton", "triton-encoder", *latents, *(f"triton-{name}" for name in states)]
    assert [backend.name for backend in backends] == names
    assert {(backend.facts, backend.launch) for backend in backends} == {(TARGETS["sm_90"], platform.own)}
    bound = platform.ops(REFERENCE)
    assert {(kernel.facts, kernel.launch) for kernel in bound.values()} == {(TARGETS["sm_90"], platform.own)}


class Kernel:
    """As Triton's, which is compiled for each kind of arguments on each device."""

    def __init__(self):
        self.device_caches = {}

    def __getitem__(self, grid):
        def launched(device, n):
            self.device_caches.setdefault(device, ({}, "target", "backend"))[0][n == 1] = "compiled"

        return launched


def test_what_is_compiled_for_launches_is_counted(monkeypatch):
    monkeypatch.setattr(platform_module, "replace", lambda reference, **own: own)
    platform, one, other = Made(), Kernel(), Kernel()
    assert platform.compilations() is None
    platform.ops(REFERENCE)
    assert platform.compilations() == 0
    for kernel, device, n in ((one, 0, 1), (one, 0, 7), (one, 0, 8), (other, 0, 1), (other, 1, 1)):
        platform.own(kernel, (1,), device, n)
    assert platform.compilations() == 4


def test_without_facts_the_reference_computes_everything_and_the_log_says_so(caplog):
    platform = Made(found=None)
    platform.open(1)
    assert platform.attention_backends() == ()
    assert platform.ops(REFERENCE) is REFERENCE
    assert platform.compilations() is None
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "platform 'made' has no kernels for card 1"
    ]


def test_without_the_backend_of_triton_nothing_is_asked_of_the_device(monkeypatch):
    monkeypatch.setattr(Made, "compiler", "no backend of this name")
    monkeypatch.setattr(Made, "_facts", lambda self: pytest.fail("asked"))
    assert Made().ops(REFERENCE) is REFERENCE
    assert Made().attention_backends() == ()


def test_a_compiler_is_found_by_its_folder(tmp_path, monkeypatch):
    (tmp_path / "backends/intel").mkdir(parents=True)
    monkeypatch.setattr(facts, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    assert (facts.has_compiler("intel"), facts.has_compiler("amd")) == (True, False)
    monkeypatch.setattr(facts, "find_spec", lambda name: None)
    assert not facts.has_compiler("intel")


def test_the_device_is_made_the_current_one_and_named():
    said = []
    assert Made(torch=made_up(said)).open(1).name == "card 1"
    assert said == [1]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(PlatformError, match=r"^there is no device 2: torch finds 2; lower --tensor-parallel-size"):
        Made().open(2)


def test_workers_join_the_group_of_the_platforms_collectives(monkeypatch):
    class Joined:
        @staticmethod
        def join(torch, backend, rendezvous, rank, size, *, capturable):
            return backend, rendezvous, rank, size, capturable

    monkeypatch.setattr(platform_module, "TorchCommunicator", Joined)
    spec = WorkerSpec(rank=1, world_size=2, devices=(1,))
    assert Made().communicator(spec, None, "file://place") == ("xccl", "file://place", 1, 2, True)
    monkeypatch.setattr(Made, "_captures_collectives", lambda platform: False)
    assert Made().communicator(spec, None, "file://place")[-1] is False


def test_graphs_are_captured_by_torchs_class_for_the_kind():
    said = []
    runner = Made(torch=made_up(said)).graph_runner(SimpleNamespace(synchronize=lambda: said.append("wait")))
    key = LaunchKey("decode", 1, 1, 1, 1)
    executable = runner.capture(key, lambda launch: said.append("forward") or "result", None, None)
    assert said == ["forward", "wait", "pool None", "begin", "forward", "end"]
    assert runner.pool == "the pool"
    assert runner.replay(executable, SimpleNamespace(key=key)) == "result"
    assert said[-1] == "replay"


def test_pieces_of_a_prompt_share_a_pool_and_attention_runs_between_them():
    said = []
    runner = Made(torch=made_up(said)).graph_runner(SimpleNamespace(synchronize=lambda: said.append("wait")))
    mixer = runner.split(SimpleNamespace(fused=lambda x, positions, caches, plan: said.append(plan)))

    def forward(launch):
        mixer.fused(None, None, None, launch.plans[0])
        return "result", "residual"

    key = LaunchKey("mixed", 16, 1, 1, 16)
    executable = runner.capture(key, forward, SimpleNamespace(key=key, plans=["warm-up's"]), None)
    assert said == ["warm-up's", "wait", "pool None", "begin", "end", "warm-up's", "pool the pool", "begin", "end"]
    said.clear()
    launch = SimpleNamespace(key=LaunchKey("mixed", 2, 8, 4, 16), plans=["its own"])
    assert runner.key_of(launch.key) == key
    assert runner.replay(executable, launch) == ("result", "residual")
    assert said == ["replay", "its own", "replay"]


def test_a_torch_without_graphs_launches_eagerly_in_exact_shapes_and_says_why():
    platform = Made(torch=made_up(graphs=False))
    assert platform.graph_runner(SimpleNamespace()) == "torch 2.9 has no graphs for xpu"
    assert platform.shapes(None, None) is None


def test_decode_launches_are_padded_and_their_blocks_hold_the_longest_request():
    shapes = Made().shapes(SimpleNamespace(caches=(), generates=True), config_of(300))
    assert (list(shapes.decode_rows), shapes.blocks) == ([1, 2, 4, 8, 16], (7,))


def config_of(most_tokens, *, eager=False):
    scheduler = SimpleNamespace(max_num_seqs=16, max_decode_tokens=1, max_num_batched_tokens=most_tokens)
    cache, model = SimpleNamespace(block_size=None), SimpleNamespace(max_model_len=100)
    return SimpleNamespace(cache=cache, model=model, scheduler=scheduler, enforce_eager=eager)


def test_captured_tokens_of_launches_with_prompts_hold_the_most_of_a_step():
    generates = SimpleNamespace(caches=(), generates=True)
    assert mixed_tokens(generates, config_of(8192)) == list(MIXED)
    assert mixed_tokens(generates, config_of(257)) == [16, 32, 64, 128, 256, 384]
    assert mixed_tokens(generates, config_of(256)) == [16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    ("caches", "generates", "eager"),
    [((), True, True), ((), False, False), ((LayerCache(0, CrossSpec(1, 8, "float32", length=4)),), True, False)],
    ids=["nothing is captured", "a model that pools", "an encoder's positions"],
)
def test_tokens_are_not_padded_in_vain(caches, generates, eager):
    assert mixed_tokens(SimpleNamespace(caches=caches, generates=generates), config_of(64, eager=eager)) == ()


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20]), (32, [1, 2, 4, 8, 16, 24, 32])],
)
def test_captured_rows_end_with_the_most_that_a_step_may_have(most, expected):
    assert rows(most) == expected


def test_beyond_many_rows_captures_are_further_apart_and_an_eighth_is_padding_at_most():
    found = rows(1024)
    assert found[: len(rows(256))] == rows(256)
    assert found[len(rows(256)) :] == [*range(288, 513, 32), *range(576, 1025, 64)]
    assert rows(300) == [*rows(256), 288, 300]


def test_a_device_that_is_unlike_the_first_is_refused_in_one_line():
    platform = Made()
    platform.visible = "CHIPS_VISIBLE"
    platform._described = lambda index: (f"card {index}", f"kind {index // 2}")
    platform._require_one_kind(0)
    platform._require_one_kind(1)
    with pytest.raises(PlatformError) as refused:
        platform._require_one_kind(2)
    assert str(refused.value) == (
        "device 0 is card 0 (kind 0), but device 2 is card 2 (kind 1): one engine takes devices of one kind; choose "
        "them with CHIPS_VISIBLE."
    )


def test_a_device_with_much_memory_has_its_defaults(monkeypatch):
    assert Made().defaults(None) == {}
    monkeypatch.setattr(Made, "_memory", lambda platform: 80 << 30)
    assert {name: default.value for name, default in Made().defaults(None).items()} == {
        "scheduler.max_num_seqs": 1024,
        "scheduler.max_num_batched_tokens": 8192,
    }


def test_triton_builds_with_a_c_compiler_and_python_s_headers(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(installed.shutil, "which", lambda name: "/bin/gcc" if name == "gcc" else None)
    (tmp_path / "Python.h").touch()
    assert installed.no_c_compiler(tmp_path) is None
    assert installed.no_c_compiler(tmp_path / "none") == (
        f"Triton needs {tmp_path / 'none' / 'Python.h'}, of Python's development package (python3-dev)"
    )
    monkeypatch.setenv("CC", "tcc")
    assert installed.no_c_compiler(tmp_path) == "Triton needs a C compiler, and CC names tcc, which is not there"
    monkeypatch.delenv("CC")
    monkeypatch.setattr(installed.shutil, "which", lambda name: None)
    assert installed.no_c_compiler(tmp_path) == "Triton needs a C compiler, and there is neither gcc nor clang"
    monkeypatch.setattr(installed, "has_compiler", lambda name: True)
    assert installed.absent("amd", "AMD GPUs") is not None
    assert installed.absent("intel", "Intel GPUs") is None
