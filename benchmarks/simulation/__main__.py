"""Simulates a fleet of replicas with core's own scheduler, caches and routing.

python -m benchmarks.simulation run --device h100 --model llama-3.1-8b --replicas 8 --rate 40 --route prefix round-robin
python -m benchmarks.simulation size --device h100 --model llama-3.1-8b --rate 40 --ttft-ms 1000 --tpot-ms 50
python -m benchmarks.simulation devices
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.simulation.devices import PUBLISHED, load_device
from benchmarks.simulation.figures import HEADER, Figures, Goal, figures, line, notes
from benchmarks.simulation.fleet import Fault, Fleet
from benchmarks.simulation.measure import measure_device, write_device
from benchmarks.simulation.models import SIZES, load_model
from benchmarks.simulation.replica import ReplicaKind, cache_plan, cache_tokens
from benchmarks.simulation.routes import ROUTES
from benchmarks.simulation.timed_engine import TIMERS
from benchmarks.simulation.traces import Contents, Lengths, TracedRequest, Traffic, read_trace
from benchmarks.simulation.validate import lines, validate
from tessera.config import SchedulerConfig

MOST_REPLICAS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        return int(options.action(options))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """One row for each number of replicas and each route."""
    requests = _requests(options)
    print(f"{len(requests)} requests; {describe(options)}")
    print(HEADER)
    rows = []
    for replicas in options.replicas:
        for route in options.route:
            found = _simulated(options, requests, replicas, route)
            print(line(route, replicas, found), flush=True)
            for note in notes(found):
                print(f"{'':9}{note}")
            rows.append({"replicas": replicas, "route": route, **asdict(found)})
    _write(options, rows)
    return 0


def size(options: argparse.Namespace) -> int:
    """The least number of replicas with which enough requests meet the goal."""
    requests = _requests(options)
    print(f"{len(requests)} requests; {describe(options)}")
    print(HEADER)
    route, rows = options.route[0], []

    def is_enough(replicas: int) -> bool:
        found = _simulated(options, requests, replicas, route)
        print(line(route, replicas, found), flush=True)
        rows.append({"replicas": replicas, "route": route, **asdict(found)})
        return found.good >= options.of

    few, enough = 0, options.replicas[0]
    while not is_enough(enough):
        few, enough = enough, 2 * enough
        if enough > MOST_REPLICAS:
            print(f"not even {few} replicas are enough")
            return 1
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    goal = f"TTFT <= {options.ttft_ms:g} ms and TPOT <= {options.tpot_ms:g} ms"
    print(f"{enough} replicas: at least {options.of:.0%} of the requests have {goal}")
    _write(options, rows)
    return 0


def devices(options: argparse.Namespace) -> int:
    """The table of published devices."""
    for device in PUBLISHED.values():
        print(
            f"{device.name:8} {device.memory_bytes / 1e9:5.0f} GB {device.bytes_per_second / 1e12:6.2f} TB/s "
            f"{device.flops_per_second / 1e12:6.0f} TFLOP/s   {device.source}"
        )
    return 0


def measure(options: argparse.Namespace) -> int:
    """This machine as a device, by steps of a real engine with random weights."""
    _, sizes = load_model(options.model)
    device, found = measure_device(sizes, options.platform, options.timer)
    print(
        f"{device.source}: {device.bytes_per_second / 1e9:.1f} GB/s, {device.flops_per_second / 1e9:.0f} GFLOP/s, "
        f"{1e3 * device.step_seconds:.2f} ms a step, {1e3 * device.row_seconds:.3f} ms a row ({options.timer} seconds)"
    )
    for one in found:
        print(
            f"{one.kind}: {one.num_steps} steps, off by {one.median:.0%} (median), {one.large:.0%} (90 of a hundred), "
            f"{one.total - 1:+.0%} in all"
        )
    if options.json is not None:
        write_device(device, found, options.json)
    return 0


def validation(options: argparse.Namespace) -> int:
    """A trace served by a real engine beside its simulation; measures the device first, unless it gets a file."""
    _, sizes = load_model(options.model)
    device = (
        load_device(options.device) if options.device else measure_device(sizes, options.platform, options.timer)[0]
    )
    requests = _requests(options)
    print(f"{len(requests)} requests, at {options.rate:g} a second")
    found = validate(sizes, device, requests, options.seed, options.platform, options.timer)
    for text in lines(found):
        print(text)
    return 0


def describe(options: argparse.Namespace) -> str:
    device, (model, _) = load_device(options.device), load_model(options.model)
    return (
        f"{model.name} on {device.name}: cache of {_cache(options):,} tokens, {options.max_num_seqs} rows, "
        f"{options.max_num_batched_tokens} tokens a step"
    )


def _cache(options: argparse.Namespace) -> int:
    return options.cache_tokens or cache_tokens(load_device(options.device), load_model(options.model)[0])


def _requests(options: argparse.Namespace) -> list[TracedRequest]:
    if options.trace is not None:
        return read_trace(options.trace, speed=options.speed)
    most = options.max_model_len
    answers = Lengths(options.answer_tokens, options.answer_sigma, most // 4)
    traffic = Traffic(
        rate=options.rate,
        seconds=options.seconds,
        user=Lengths(options.prompt_tokens, options.prompt_sigma, most // 2),
        answers=answers,
        burstiness=options.burstiness,
        num_systems=options.systems,
        system_length=options.system_tokens,
        turns=options.turns,
        think_seconds=options.think_seconds,
        max_prompt=most - answers.longest,
    )
    return traffic.draw(options.seed)


def _simulated(options: argparse.Namespace, requests: Sequence[TracedRequest], replicas: int, route: str) -> Figures:
    device, (model, _) = load_device(options.device), load_model(options.model)
    scheduler = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        chunked_prefill=not options.no_chunked_prefill,
        max_waiting=options.max_waiting,
    )
    plan = cache_plan(_cache(options), options.max_num_seqs, options.max_model_len, model.kv_bytes)
    kind = ReplicaKind(device, model, scheduler, plan, prefix_caching=not options.no_prefix_caching)
    middle = options.seconds / 2 if options.trace is None else requests[-1].at / 2
    faults = [Fault(number, middle, options.restart_seconds) for number in range(min(options.kill, replicas))]
    fleet = Fleet(kind, replicas, route, faults=faults, num_slow=options.slow, slowness=options.slowness)
    until = options.seconds if options.trace is None else math.inf
    found = fleet.run(requests, Contents(options.seed, model.vocab_size), until=until)
    goal = Goal(options.ttft_ms / 1e3, options.tpot_ms / 1e3)
    return figures(found, goal, warm_up=options.warm_up)


def _write(options: argparse.Namespace, rows: Sequence[object]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True)
    fleet = argparse.ArgumentParser(add_help=False)
    _add_fleet(fleet)
    _add_traffic(fleet)
    for action in (run, size):
        actions.add_parser(action.__name__, help=action.__doc__, parents=[fleet]).set_defaults(action=action)
    real = argparse.ArgumentParser(add_help=False)
    real.add_argument("--platform", help="that runs the engine; the one that tessera serve chooses")
    real.add_argument(
        "--timer",
        choices=TIMERS,
        default="wall",
        help="processor: seconds of one thread, on a machine that is not idle",
    )
    named = actions.add_parser("measure", help=measure.__doc__, parents=[real])
    named.add_argument("--model", default="smollm2-135m", help=f"{', '.join(SIZES)}, or a folder")
    named.add_argument("--json", type=Path, help="for --device")
    named.set_defaults(action=measure)
    named = actions.add_parser("validate", help=validation.__doc__, parents=[real])
    named.add_argument("--device", help="a file of `measure`")
    named.add_argument("--model", default="smollm2-135m", help=f"{', '.join(SIZES)}, or a folder")
    named.add_argument("--max-model-len", type=int, default=2048)
    _add_traffic(named)
    named.set_defaults(
        action=validation, rate=1.0, seconds=40.0, prompt_tokens=150, answer_tokens=25, systems=3, system_tokens=200
    )
    actions.add_parser("devices", help=devices.__doc__).set_defaults(action=devices)
    return parser


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="h100", help=f"{', '.join(PUBLISHED)}, or a file of `measure`")
    parser.add_argument("--model", default="llama-3.1-8b", help=f"{', '.join(SIZES)}, or a folder")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1], help="of `size`: where to begin")
    parser.add_argument("--route", nargs="+", choices=ROUTES, default=["prefix"])
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-model-len", type=int, default=16_384)
    parser.add_argument("--max-waiting", type=int, default=4096)
    parser.add_argument("--no-chunked-prefill", action="store_true")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--cache-tokens", type=int, help="instead of what the device's memory has room for")
    parser.add_argument("--kill", type=int, default=0, help="replicas that die in the middle of the trace")
    parser.add_argument("--restart-seconds", type=float, default=30.0, help="until they serve again")
    parser.add_argument("--slow", type=int, default=0, help="replicas whose device is slow")
    parser.add_argument("--slowness", type=float, default=3.0, help="times that it takes longer")
    parser.add_argument("--ttft-ms", type=float, default=1000.0, help="goal for the time to the first token")
    parser.add_argument("--tpot-ms", type=float, default=50.0, help="goal for the time per token after it")
    parser.add_argument("--of", type=float, default=0.99, help="of `size`: requests that meet the goals")
    parser.add_argument("--json", type=Path)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="JSON lines, ours or Mooncake's, instead of drawn requests")
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=120.0, help="in which requests arrive")
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds whose requests are not counted")
    parser.add_argument("--burstiness", type=float, default=1.0, help="1 is a Poisson process, lower is burstier")
    parser.add_argument("--prompt-tokens", type=float, default=300, help="median of what a user says")
    parser.add_argument("--prompt-sigma", type=float, default=1.0)
    parser.add_argument("--answer-tokens", type=float, default=200, help="median")
    parser.add_argument("--answer-sigma", type=float, default=0.7)
    parser.add_argument("--systems", type=int, default=20, help="different system prompts")
    parser.add_argument("--system-tokens", type=int, default=1000)
    parser.add_argument("--turns", type=float, default=1.0, help="of a session, on average")
    parser.add_argument("--think-seconds", type=float, default=20.0, help="between turns, on average")


if __name__ == "__main__":
    sys.exit(main())
