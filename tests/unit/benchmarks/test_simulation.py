"""A simulated fleet: what its steps take, that a seed decides everything, and what replicas and routes do to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.simulation import __main__ as program
from benchmarks.simulation.devices import PUBLISHED, Device, load_device
from benchmarks.simulation.figures import Figures, Goal, figures
from benchmarks.simulation.fleet import Fault, Fleet, FleetRun
from benchmarks.simulation.measure import TimedStep, fit
from benchmarks.simulation.models import SIZES, SMOLLM2_135M, ModelCost, StepWork
from benchmarks.simulation.replica import Clock, Replica, ReplicaKind, cache_plan, cache_tokens
from benchmarks.simulation.routes import ROUTES
from benchmarks.simulation.traces import Contents, Lengths, Piece, TracedRequest, Traffic, read_trace

from tessera.config import SchedulerConfig

MODEL = ModelCost.from_sizes("small", SMOLLM2_135M)
DEVICE = Device("round", 16e9, 1e11, 1e13, "made up", step_seconds=0.001, read_share=1.0, product_share=1.0, depth=1)
TRAFFIC = Traffic(
    20.0, 4.0, Lengths(60, 0.8, 400), Lengths(20, 0.5, 100), num_systems=12, system_length=500, turns=2.0,
    think_seconds=1.0, max_prompt=1500,
)  # fmt: skip
CONTENTS = Contents(1, MODEL.vocab_size)


def kind(*, tokens: int = 20_000, rows: int = 32, device: Device = DEVICE, **scheduler: int) -> ReplicaKind:
    config = SchedulerConfig(**{"max_num_seqs": rows, "max_num_batched_tokens": 512, **scheduler})
    return ReplicaKind(device, MODEL, config, cache_plan(tokens, rows, 2048, MODEL.kv_bytes))


def simulate(requests: list[TracedRequest], replicas: int, route: str = "prefix", **options) -> FleetRun:
    of = options.pop("kind", None) or kind()
    return Fleet(of, replicas, route, **options).run(requests, CONTENTS)


def summary(run: FleetRun) -> Figures:
    return figures(run, Goal(1.0, 0.05))


def plain(at: float, prompt: int, answer: int, content: int = 0) -> TracedRequest:
    return TracedRequest(at, [Piece(content, prompt)], Piece(content + 1, answer))


# ---- one replica -----------------------------------------------------------------------------------------------------


def test_a_request_takes_as_long_as_its_steps_by_hand() -> None:
    run = simulate([plain(0.5, 600, 3)], 1)
    (record,) = run.records
    # 600 tokens in steps of 512 and 88, which draws; then one token, and one more, each after what came before.
    works = [
        StepWork(1, 512, 0, 512, 512 * 513 // 2),
        StepWork(1, 88, 1, 600, 88 * 512 + 88 * 89 // 2),
        StepWork(1, 1, 1, 601, 601),
        StepWork(1, 1, 1, 602, 602),
    ]
    took = [DEVICE.seconds(MODEL, work) for work in works]
    assert record.ttft == pytest.approx(sum(took[:2]))
    assert record.tpot == pytest.approx(sum(took[2:]) / 2)
    assert (record.outcome, record.num_cached, run.num_steps) == ("length", 0, 4)


def test_a_step_is_limited_by_reading_or_by_arithmetic() -> None:
    alone, many = StepWork(1, 1, 1, 100, 100), StepWork(1, 4096, 1, 4096, 4096 * 4097 // 2)
    faster_memory = replace(DEVICE, bytes_per_second=2e11)
    faster_products = replace(DEVICE, flops_per_second=2e13)
    fixed = DEVICE.step_seconds
    read = DEVICE.seconds(MODEL, alone) - fixed
    assert faster_memory.seconds(MODEL, alone) - fixed == pytest.approx(read / 2)
    assert faster_products.seconds(MODEL, alone) == DEVICE.seconds(MODEL, alone)
    computed = DEVICE.seconds(MODEL, many) - fixed
    assert faster_products.seconds(MODEL, many) - fixed == pytest.approx(computed / 2)
    assert faster_memory.seconds(MODEL, many) == DEVICE.seconds(MODEL, many)


def test_steps_in_flight_follow_each_other_on_the_device() -> None:
    ahead = simulate([plain(0, 600, 30)], 1, kind=kind(device=replace(DEVICE, depth=2)))
    (record,) = ahead.records
    (alone,) = simulate([plain(0, 600, 30)], 1).records
    assert record.last_token_at == pytest.approx(alone.last_token_at)
    assert ahead.num_steps == 31


def test_the_next_turn_finds_the_answer_before_it_in_the_cache() -> None:
    system, said, answer = Piece(0, 160), Piece(1, 32), Piece(2, 65)
    requests = [
        TracedRequest(0, [system, said], answer),
        TracedRequest(1, [system, said, answer, Piece(3, 20)], Piece(4, 5), after=0),
    ]
    first, second = simulate(requests, 1).records
    assert second.arrived_at == pytest.approx(first.last_token_at + 1)
    assert second.num_cached == 256  # all but the answer's last token, in blocks of 16


def test_too_few_blocks_preempt_and_all_are_answered() -> None:
    run = simulate([plain(0, 200, 300, 2 * number) for number in range(8)], 1, kind=kind(tokens=2100))
    assert {record.outcome for record in run.records} == {"length"}
    assert run.num_preemptions
    assert run.max_usage > 0.95


def test_what_never_fits_is_refused_and_a_full_queue_leaves_unanswered() -> None:
    requests = [plain(0, 3000, 5), *(plain(0, 300, 20, 2 * number) for number in range(1, 9))]
    run = simulate(requests, 1, kind=kind(rows=2, max_waiting=3))
    outcomes = [record.outcome for record in run.records]
    assert outcomes[0] == "refused"
    assert outcomes.count("unanswered") == 8 - outcomes.count("length") > 0
    assert summary(run).failures == {"refused": 1, "unanswered": outcomes.count("unanswered")}


# ---- a fleet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_a_seed_decides_everything(route: str) -> None:
    first, again = (summary(simulate(TRAFFIC.draw(4), 3, route, faults=[Fault(1, 3, 1)])).settled for _ in range(2))
    assert first == again
    assert summary(simulate(TRAFFIC.draw(5), 3, route)).settled != first


def test_prefixes_meet_what_is_cached() -> None:
    hits = {route: summary(simulate(TRAFFIC.draw(0), 6, route)).hit_rate for route in ROUTES}
    assert hits["prefix"] > hits["least-loaded"] + 0.1
    assert hits["prefix"] > hits["round-robin"] + 0.1


def test_requests_of_a_replica_that_dies_go_on_elsewhere() -> None:
    requests = [plain(0, 500, 200, 2 * number) for number in range(24)]
    run = simulate(requests, 2, "round-robin", faults=[Fault(0, 0.15, 2)])
    moved = [record for record in run.records if record.num_moves]
    broken = [record for record in run.records if record.outcome == "broken"]
    assert moved
    assert broken
    assert {record.outcome for record in moved} == {"length"}
    assert len(run.records) == 24
    assert all(0 <= record.first_token_at <= 0.15 for record in broken)


def test_a_replica_that_has_died_serves_again_with_an_empty_cache() -> None:
    requests = [plain(0, 480, 2), plain(1, 480, 2), plain(3, 480, 2)]
    cached = [record.num_cached for record in simulate(requests, 1, faults=[Fault(0, 2, 0.5)]).records]
    assert cached == [0, 464, 0]


def test_nobody_answers_while_the_only_replica_is_down() -> None:
    run = simulate([plain(1, 100, 2)], 1, faults=[Fault(0, 0.5, 5)])
    assert [record.outcome for record in run.records] == ["unanswered"]


def test_least_loaded_spares_a_slow_replica() -> None:
    requests = [plain(0.01 * number, 300, 30, 2 * number) for number in range(60)]
    slow = {
        route: summary(simulate(requests, 3, route, num_slow=1, slowness=8.0)).ttft[1]
        for route in ("least-loaded", "round-robin")
    }
    assert slow["least-loaded"] < 0.8 * slow["round-robin"]


def test_nothing_arrives_after_the_end() -> None:
    requests = TRAFFIC.draw(0)
    run = Fleet(kind(), 2).run(requests, CONTENTS, until=2.5)
    assert 0 < len(run.records) < len(requests)
    assert max(record.arrived_at for record in run.records) <= 2.5
    assert {record.outcome for record in run.records} == {"length"}


def test_the_warm_up_is_not_counted() -> None:
    run = simulate(TRAFFIC.draw(0), 2)
    whole, late = (figures(run, Goal(1.0, 0.05), warm_up=seconds) for seconds in (0.0, 2.0))
    assert 0 < late.num_requests < whole.num_requests
    assert late.hit_rate > whole.hit_rate


# ---- traces ----------------------------------------------------------------------------------------------------------


def test_drawn_traffic_has_the_rate_and_the_lengths_that_are_wanted() -> None:
    requests = replace(TRAFFIC, seconds=300.0, turns=1.0).draw(7)
    assert len(requests) == 6000
    assert requests[-1].at == pytest.approx(300, rel=0.05)
    assert np.median([request.answer.length for request in requests]) == pytest.approx(20, rel=0.1)
    gaps = {
        burstiness: np.diff([one.at for one in replace(TRAFFIC, turns=1.0, burstiness=burstiness).draw(7)])
        for burstiness in (1.0, 0.2)
    }
    assert gaps[0.2].std() > 1.5 * gaps[1.0].std()


def test_every_session_begins_however_little_room_there_is() -> None:
    tight = replace(TRAFFIC, max_prompt=TRAFFIC.system_length + 5).draw(0)
    assert sum(request.after is None for request in tight) == round(TRAFFIC.rate / TRAFFIC.turns * TRAFFIC.seconds)
    assert max(request.prompt_length for request in tight) == TRAFFIC.system_length + 5
    with pytest.raises(ValueError, match="leave no room"):
        replace(TRAFFIC, max_prompt=TRAFFIC.system_length).draw(0)


def test_the_rate_is_of_what_is_answered_while_requests_arrive() -> None:
    requests = [plain(0.1 * number, 50, 5, 2 * number) for number in range(101)]
    assert summary(simulate(requests, 1)).requests_per_second == pytest.approx(10, rel=0.02)
    late = figures(simulate(requests, 1), Goal(1.0, 0.05), warm_up=5.0)
    assert late.requests_per_second == pytest.approx(10, rel=0.03)
    assert late.tokens_per_second == pytest.approx(50, rel=0.03)


def test_later_turns_begin_with_all_that_was_said() -> None:
    requests = TRAFFIC.draw(3)
    later = [request for request in requests if request.after is not None]
    assert later
    for request in later:
        before = requests[request.after]
        assert request.pieces[:-1] == (*before.pieces, before.answer)


def test_a_longer_piece_begins_with_a_shorter_one_of_its_content() -> None:
    short, long = (CONTENTS.tokens([Piece(9, length)]) for length in (37, 500))
    assert (long[:37] == short).all()
    assert (CONTENTS.tokens([Piece(8, 37)]) != short).any()


def test_recorded_traces_are_read_in_both_forms(tmp_path: Path) -> None:
    ours = tmp_path / "ours.jsonl"
    ours.write_text(
        '{"time": 2, "prompt_tokens": 50, "output_tokens": 4, "prefix_id": 7, "prefix_tokens": 30}\n\n'
        '{"time": 1, "prompt_tokens": 30, "output_tokens": 2, "prefix_id": 7, "prefix_tokens": 30}\n'
    )
    first, second = read_trace(ours, speed=2)
    assert (first.at, first.prompt_length, first.answer.length) == (0.5, 30, 2)
    assert second.pieces[0] == first.pieces[0]
    assert second.prompt_length == 50
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text(
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 3000, "input_length": 1025, "output_length": 6, "hash_ids": [0, 1, 9]}\n'
    )
    first, second = read_trace(mooncake)
    assert (second.at, second.prompt_length) == (3, 1025)
    assert second.pieces[:2] == first.pieces[:2]
    assert second.pieces[2].content != first.pieces[2].content
    assert {record.outcome for record in simulate([first, second], 1).records} == {"length"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("[]", "line 1"),
        ('{"time": 0, "prompt_tokens": 5, "output_tokens": 0}', "without tokens"),
        ('{"time": -1, "prompt_tokens": 5, "output_tokens": 1}', "before the start"),
        ('{"time": 0, "prompt_tokens": 5, "output_tokens": 1, "prefix_id": 1, "prefix_tokens": 6}', "6 tokens of a"),
        ('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1, 2]}', "2 hash_ids"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_trace(tmp_path / "trace.jsonl")


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_limits_are_recovered_from_the_steps_that_they_explain() -> None:
    random = np.random.default_rng(0)
    device = replace(DEVICE, row_seconds=1e-4)
    steps = []
    for _ in range(200):
        rows, most = int(random.integers(1, 20)), int(random.choice([1, 200]))
        tokens, context = rows * most, int(random.integers(200, 2000))
        model = replace(MODEL, weight_bytes=MODEL.weight_bytes * int(random.integers(1, 4)) / 3)
        work = StepWork(rows, tokens, rows, rows * context, tokens * context)
        steps.append(TimedStep(model, work, device.seconds(model, work)))
    found = fit(steps, "found")
    for name in ("bytes_per_second", "flops_per_second", "step_seconds", "row_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(device, name), rel=1e-6), name


def test_every_published_device_has_its_source_and_room_for_a_model() -> None:
    model = ModelCost.from_sizes("8b", SIZES["llama-3.1-8b"])
    assert model.all_bytes == pytest.approx(16.06e9, rel=0.001)
    assert model.weight_bytes == pytest.approx(15.01e9, rel=0.001)
    assert model.kv_bytes == 131_072
    for name, device in PUBLISHED.items():
        assert load_device(name) is device
        assert device.source
        assert cache_tokens(device, model) > 50_000
    with pytest.raises(ValueError, match="does not fit"):
        cache_tokens(replace(DEVICE, memory_bytes=16e9), model)


# ---- the program -----------------------------------------------------------------------------------------------------

SMALL = [
    "--model", "smollm2-135m", "--device", "tpu-v6e", "--rate", "20", "--seconds", "3", "--max-model-len", "2048",
    "--system-tokens", "200", "--prompt-tokens", "50", "--answer-tokens", "8",
]  # fmt: skip


def test_run_prints_a_row_for_each_fleet_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert program.main(["run", *SMALL, "--replicas", "1", "3", "--route", *ROUTES, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert [(row["replicas"], row["route"]) for row in rows] == [(n, route) for n in (1, 3) for route in ROUTES]
    assert all(50 < row["num_requests"] <= 60 and row["good"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == 2 + len(rows)


def test_size_finds_the_least_number_of_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-num-seqs", "1", "--answer-tokens", "100", "--seconds", "1", "--ttft-ms", "100", "--of", "0.9"]
    assert program.main(["size", *SMALL, *limits]) == 0
    words = capsys.readouterr().out.splitlines()[-1].split()
    enough = int(words[0])
    assert enough > 1
    assert program.main(["size", *SMALL, *limits, "--replicas", str(enough - 1)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == str(enough)


@pytest.mark.parametrize("wrong", [["--device", "abacus"], ["--model", "abacus"]])
def test_unknown_names_are_one_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["run", *wrong]) == 2
    said = capsys.readouterr().err
    assert "abacus" in said
    assert said.count("\n") == 1


def test_the_table_of_devices_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["devices"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PUBLISHED)


def test_a_replica_begins_and_ends_without_work() -> None:
    replica = Replica(kind(), Clock())
    assert replica.launch() is None
    replica.add(0, CONTENTS.tokens([Piece(0, 40)]), CONTENTS.tokens([Piece(1, 2)]))
    while replica.launch() is not None:
        replica.retire()
    assert not replica.has_work
    replica.scheduler.check_integrity()


def test_the_scheduler_reads_the_clock_of_the_simulation() -> None:
    clock = Clock()
    replica = Replica(kind(), clock)
    clock.now = 7.5
    replica.add(0, CONTENTS.tokens([Piece(0, 40)]), CONTENTS.tokens([Piece(1, 2)]))
    assert replica.launch() == pytest.approx(7.5 + DEVICE.seconds(MODEL, StepWork(1, 40, 1, 40, 820)))
    assert [started.scheduled_at for started in replica.retire().started] == [7.5]
