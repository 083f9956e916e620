"""A chip that refuses what real ones refuse: no step reads it behind its back or mixes it with the host, and its two
devices serve together."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessera import LLM, BeamSearchParams, SamplingParams
from tessera.config import build_config
from tessera.loader.source import open_source
from tessera.platform import HostDevice, MemoryFigures, Part, TorchDevice
from tessera.testing import HostReads
from tessera.testing.conformance import conformance_cases
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler
QUESTIONS = prompts(6, longest=40, seed=17)
EVERYTHING = {
    "logprobs": 3, "prompt_logprobs": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {7: 2.0},
    "min_tokens": 3, "allowed_token_ids": list(range(3, 90)), "bad_words_ids": [[5, 6]], **FILTERED,
}  # fmt: skip
ROOT = Path(__file__).parents[3]
PATHS = ("", "core", "platforms/cpu", "tests/fakechip", "tests/torch_fakechip")
# One thread waits for copies whose tensors only Python holds, others ask for events: each wants the device's lock
# and the interpreter's.
COPY_AND_ASK = """
import sys, threading, time
import torch, torch_fakechip

sys.setswitchinterval(1e-5)
end = time.monotonic() + 2


def copy():
    source = torch.ones(64, device="fakechip:0")
    while time.monotonic() < end:
        kept = [torch.empty(64, pin_memory=True).copy_(source, non_blocking=True) for _ in range(20)]
        event().synchronize()
        assert all(bool((tensor == 1).all()) for tensor in kept)


def ask():
    while time.monotonic() < end:
        event().query()


def event():
    made = torch.Event("fakechip:0")
    made.record(torch.accelerator.current_stream("fakechip:0"))
    return made


threads = [threading.Thread(target=target) for target in (copy, ask, ask)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.fixture(scope="module")
def chip() -> Any:
    import torch_fakechip

    return torch_fakechip


@pytest.mark.parametrize("platform", ["fakechip-bronze", "fakechip", "fakechip-static"])
def test_no_step_reads_the_device_behind_its_back(chip: Any, llama: Path, platform: str) -> None:
    with EngineRun(llama, platform, depth=2, max_num_batched_tokens=32) as run:
        chip.reset()
        with chip.refused_reads():
            run.ask(QUESTIONS, 8)
            run.ask(QUESTIONS[:2], 8)  # prefix hits
            run.ask(QUESTIONS, 8, **EVERYTHING)
    assert chip.reads() == {}
    assert chip.copies() >= len(run.steps)


def test_what_is_launched_is_replayed(llama: Path, chip: Any) -> None:
    """A replay runs no op through torch."""
    with EngineRun(llama, "fakechip-static", depth=2) as run:
        runner = run.executor.runner
        chip.reset()
        run.ask(QUESTIONS, 8, ignore_eos=True)
    assert set(runner.executables) == set(runner.shapes.keys())
    assert "aten::mm" in chip.ops()  # of the head, which is not among what is captured
    assert "aten::bmm" not in chip.ops()


def test_blocks_are_of_24_tokens_and_indices_of_32_bits(llama: Path) -> None:
    with EngineRun(llama, "fakechip") as run:
        runner = run.executor.runner
        (group,) = runner.plan.groups
        assert group.block_size == 24
        assert runner.buffers.put("slots0", [1], runner.builder.index_dtype).dtype == torch.int32
        held = [buffer for buffers in runner.memory.buffers for buffer in buffers]
        assert {buffer.device for buffer in held} == {torch.device("fakechip", 0)}


def test_a_step_waits_for_nothing_but_the_token_of_the_step_before(chip: Any, llama: Path) -> None:
    """Whatever is asked for; on a device of which the host runs ahead."""
    flags = {"max_num_batched_tokens": 32, "check_kv_cache": False}  # the check waits for copies of the launches
    with EngineRun(llama, "fakechip", depth=2, **flags) as run:
        run.ask(QUESTIONS, 4)
        chip.reset()
        before = len(run.steps)
        run.ask(QUESTIONS, 100, ignore_eos=True)
        assert set(chip.waits()) == {"an event"}
        assert chip.waits()["an event"] <= len(run.steps) - before
        run.ask(QUESTIONS, 8, ignore_eos=True, **EVERYTHING)
    assert set(chip.waits()) == {"an event"}


def busy_share(model: Path, platform: str, depth: int) -> float:
    """Of 100 decode steps with host work of 0.6 of a step in each, by the chip's clocks."""
    chip = torch.get_device_module("fakechip")
    with EngineRun(model, platform, depth=depth, check_kv_cache=False) as run:
        for first in (5, 6, 7):
            run.add([first, 3, 4], 240, ignore_eos=True)

        def share(work: float) -> tuple[float, float]:
            for _ in range(10):
                run.step()
            began, busy = chip.host_clock.monotonic(), chip.busy(0)
            for _ in range(100):
                chip.host_clock.sleep(work)
                run.step()
            computed = chip.busy(0) - busy
            return computed / 100, computed / (chip.host_clock.monotonic() - began)

        step, _ = share(0.0)
        return share(0.6 * step)[1]


@pytest.mark.usefixtures("chip")
def test_the_host_works_while_the_device_does(llama: Path) -> None:
    """With one step in flight, or where inputs are copied from pageable memory, they take turns."""
    assert busy_share(llama, "fakechip", depth=2) >= 0.97
    pageable = "tests.platforms.faulty.on_fakechip:PageableCopies"
    for platform, depth in (("fakechip", 1), (pageable, 2)):
        assert busy_share(llama, platform, depth) == pytest.approx(1 / 1.6, abs=0.02)


def test_a_platform_that_refuses_two_workers_is_not_timed_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in PATHS))
    cases = conformance_cases("tests.platforms.refusing:OneChipAlone", num_devices=2)
    (verdict,) = [case.run() for case in cases if case.id == "overlap/workers"]
    assert (verdict.status, verdict.text) == ("n/a", "it runs on one device alone.")


@pytest.mark.parametrize(
    "platform", ["fakechip", "fakechip-static", pytest.param("fakechip-bronze", marks=pytest.mark.nightly)]
)
def test_its_two_devices_answer_as_one(
    llama: Path, alone: Alone, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in PATHS))
    with EngineRun(llama, platform, depth=2, executor=None, tensor_parallel_size=2) as run:
        assert run.ask(QUESTIONS[:3], 6, **SAMPLED) == [
            alone(question, 6, seed=seed, **SAMPLED) for seed, question in enumerate(QUESTIONS[:3])
        ]
        notes = [note for note in run.engine.info.notes if "not captured" in note]
    assert len(notes) == (platform == "fakechip-static")


@pytest.mark.nightly
def test_its_two_devices_have_whole_experts(mixtral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in PATHS))
    with EngineRun(mixtral, "reference") as alone:
        expected = alone.ask(QUESTIONS[:3], 6, **SAMPLED)
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    with EngineRun(mixtral, "fakechip", depth=2, executor=None, **flags) as run:
        assert run.ask(QUESTIONS[:3], 6, **SAMPLED) == expected


def test_the_demo_answers_as_on_the_reference() -> None:
    def answers(platform: str) -> list[list[int]]:
        seeded = [SamplingParams(max_tokens=12, temperature=float(i % 2), seed=i, ignore_eos=True) for i in range(3)]
        with LLM(platform=platform, dtype="float32", kv_cache_memory_bytes=8 << 20) as llm:
            outputs = llm.generate(["What is the capital of France?", "1 2 3", "a"], seeded, use_tqdm=False)
            beams = llm.beam_search(["The"], BeamSearchParams(beam_width=3, max_tokens=6))
        return [list(output.outputs[0].token_ids) for output in outputs] + [
            list(beam.tokens) for beam in beams[0].sequences
        ]

    assert answers("tessera_fakechip.platform:FakechipPlatform") == answers("tessera.testing:ReferencePlatform")


# ---- the device itself: each rule bites -----------------------------------------------------------------------------

MIXED = {
    "host and device": lambda x: x + torch.ones(3),
    "a product with the host": lambda x: torch.ones(3, 3) @ x,
    "two devices": lambda x: x + x.to("fakechip:1"),
    "as the host's memory": lambda x: x.numpy(),
    "a device too many": lambda x: x.to("fakechip:2"),
    "more than there is": lambda x: torch.empty(1 << 30, device=x.device),
}
READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "copy": lambda x: torch.empty(3).copy_(x),
    "mask": lambda x: x[x > 0],
    "an index of the host": lambda x: x[torch.tensor([1])],
    "nonzero": torch.nonzero,
    "unique": lambda x: x.unique(),
    "repeat": lambda x: x.repeat_interleave(x.int()),
    "equal": lambda x: torch.equal(x, x + 1),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_lies_elsewhere_is_refused(chip: Any, name: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match="fakechip"):
        MIXED[name](torch.ones(3, device="fakechip:0"))


def test_the_host_runs_ahead_and_waits_only_for_what_it_asks(chip: Any) -> None:
    clock, device = torch.get_device_module("fakechip").host_clock, TorchDevice(torch, "fakechip", 0)
    x = torch.ones(3, device=device.target)
    torch.accelerator.synchronize(device.target)
    chip.reset()
    began = clock.monotonic()
    early = device.to_host(x + 1)
    for _ in range(1000):
        x = x * 1
    assert clock.monotonic() == began
    early.result()
    assert clock.monotonic() - began == pytest.approx(55e-6)  # an op and a copy
    clock.sleep(0.01)
    assert chip.waits() == {"an event": 1}
    assert x.sum().item() == 3
    assert clock.monotonic() - began == pytest.approx(1002 * 50e-6 + 5e-6)
    assert chip.waits() == {"an event": 1, "aten::_local_scalar_dense": 1}
    assert x.sum().item() == 3


def test_a_copy_from_pinned_memory_alone_does_not_wait(chip: Any) -> None:
    x, pageable, pinned = torch.zeros(3, device="fakechip:0"), torch.ones(3), torch.ones(3, pin_memory=True)
    chip.reset()
    x.copy_(pinned, non_blocking=True)
    assert chip.waits() == {}
    for source, non_blocking in ((pageable, True), (pageable, False), (pinned, False)):
        x.copy_(source, non_blocking=non_blocking)
    assert chip.waits() == {"a copy from the host that waits": 3}


def test_the_kit_sees_what_waits(chip: Any) -> None:
    device = TorchDevice(torch, "fakechip", 0)
    x, array = torch.zeros(3, device=device.target), np.ones(3, np.float32)
    with HostReads() as reads:
        device.to_device(array, x)
        device.to_device(array)
    assert reads.lines == []
    waits = (
        lambda: x.copy_(torch.from_numpy(array)), lambda: torch.from_numpy(array).to(x.device), device.synchronize,
        lambda: torch.from_numpy(array).to(x.device, non_blocking=True),
    )  # fmt: skip
    for wait in waits:
        with HostReads() as reads:
            wait()
        assert len(reads.lines) == 1, reads.lines
        assert __file__ in reads.lines[0] or "device.py" in reads.lines[0]


def test_memory_of_the_host_that_is_still_copied_must_not_change(chip: Any) -> None:
    x, pinned = torch.zeros(3, device="fakechip:0"), torch.ones(3, pin_memory=True)
    x.copy_(pinned, non_blocking=True)
    pinned.zero_()
    with pytest.raises(RuntimeError, match="wrote to memory while a copy out of it was under way"):
        torch.accelerator.synchronize(x.device)


def test_to_device_copies_at_once_and_takes_as_much_memory_as_is_under_way(chip: Any) -> None:
    """The array may change as soon as to_device returns; memory is used again when its copies are done."""
    device, values = TorchDevice(torch, "fakechip", 0), np.zeros(20_000, np.int32)
    placed = torch.empty(20_000, dtype=torch.int32, device=device.target)
    chip.reset()
    for lap in range(5):
        found = []
        for number in range(40):  # 3.2 MB in flight
            values[:] = 40 * lap + number
            assert device.to_device(values, placed) is placed
            found.append(device.to_host(placed))
        assert [int(copy.result()[-1]) for copy in found] == list(range(40 * lap, 40 * lap + 40))
    assert set(chip.waits()) == {"an event"}
    taken = [buffer for buffers in device._staging._full.values() for buffer in buffers]
    assert len(taken) <= 40 // 3 + 1
    assert device.to_device(np.arange(6, dtype=np.int64).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    large = np.arange(1 << 20, dtype=np.float32)
    assert (device.to_device(large).cpu().numpy() == large).all()


def test_large_random_weights_are_filled_by_the_device(chip: Any, llama: Path) -> None:
    """The host draws once and copies that, and every device holds the same numbers."""
    config = build_config(model=str(llama), load_format="dummy", seed=3, platform="tessera.testing:ReferencePlatform")
    source = open_source(config, TorchDevice(torch, "fakechip", 0))
    parts = [Part(name, (2048, 1024)) for name in ("a", "b", "c")]
    chip.reset()
    weights = [source.read(part) for part in parts]
    assert chip.waits().get("a copy from the host that waits") == 1
    assert {weight.device for weight in weights} == {torch.device("fakechip", 0)}
    on_host = open_source(config, HostDevice(torch, MemoryFigures(0, 0, host=True)))
    assert all(torch.equal(on_host.read(part), weight.cpu()) for part, weight in zip(parts, weights, strict=True))


def test_without_pinned_memory_it_copies_all_the_same(chip: Any) -> None:
    device = TorchDevice(torch, "fakechip", 0, pinned=False)
    chip.reset()
    assert device.to_device(np.arange(3)).tolist() == [0, 1, 2]
    assert chip.waits()["a copy from the host that waits"] == 1


@pytest.mark.parametrize("name", READS)
def test_each_way_of_reading_is_counted_and_can_be_refused(chip: Any, name: str) -> None:
    x = torch.ones(3, device="fakechip:0")
    chip.reset()
    READS[name](x)
    assert sum(chip.reads().values()) > 0
    with chip.refused_reads(), pytest.raises(RuntimeError, match="implicit read of the device"):
        READS[name](x)


def test_a_copy_that_does_not_wait_is_there_when_its_event_has_passed(chip: Any) -> None:
    x, passed = torch.arange(5, device="fakechip:1"), torch.Event(device="fakechip:1")
    chip.reset()
    host = x.to("cpu", non_blocking=True)
    passed.record(torch.accelerator.current_stream("fakechip:1"))
    x.zero_()
    assert host.tolist() == [-1] * 5
    passed.synchronize()
    assert host.tolist() == [0, 1, 2, 3, 4]
    assert (chip.reads(), chip.copies()) == ({}, 1)


def test_to_host_starts_a_copy_of_what_is_there_then(chip: Any) -> None:
    device = TorchDevice(torch, "fakechip", 1)
    x = torch.arange(3, device=device.target)
    chip.reset()
    future = device.to_host(x)
    x.zero_()
    assert not future.done()
    assert future.result().tolist() == [0, 1, 2]
    assert future.done()
    assert chip.reads() == {}


def test_a_thread_has_the_first_device_until_it_enters_another(chip: Any) -> None:
    current = torch.get_device_module("fakechip").current_device
    device = TorchDevice(torch, "fakechip", 1)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(current).result() == 0
        thread.submit(device.enter_thread).result()
        assert thread.submit(current).result() == 1


def test_threads_copy_and_ask_at_once() -> None:
    path = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "torch_fakechip")}
    done = subprocess.run(
        [sys.executable, "-c", COPY_AND_ASK], env=path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_memory_is_counted_and_nobody_s_is_poison(chip: Any) -> None:
    device = torch.device("fakechip", 0)
    free, total = torch.accelerator.get_memory_info(device)
    kept, taken = torch.empty(1000, device=device), chip.allocated(0)
    assert torch.accelerator.get_memory_info(device) == (free - 4000, total)
    assert torch.empty(2, device=device).isnan().all()
    assert chip.allocated(0) > taken
    del kept


def test_a_recorded_launch_is_computed_again_in_its_place(chip: Any) -> None:
    x, graph = torch.ones(3, device="fakechip:0"), chip.Graph()
    with graph:
        y = (x * 2 + 1).cumsum(0)
    x.fill_(5)
    graph.replay()
    assert y.cpu().tolist() == [11, 22, 33]
    with pytest.raises(RuntimeError, match="cannot be captured"), chip.Graph():
        y.copy_(torch.ones(3))


def test_only_the_ops_that_are_allowed_run(chip: Any) -> None:
    x = torch.ones(3, device="fakechip:0")
    with chip.only_ops(["aten::add"]):
        x + x
        with pytest.raises(RuntimeError, match="aten::mul is not among the allowed ops"):
            x * x
