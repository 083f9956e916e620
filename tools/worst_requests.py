"""Looks for the right requests that cost a server most: `python -m tools.worst_requests --minutes 10`.

Every request is one that the server takes, and each of its measures (answers, stop strings, log probabilities, tools,
characters, ...) lies between what is least and what is allowed. A round sends one request several times at once, reads
the answers at full speed or not at all, and asks /livez every 20 ms from another process. The next round changes
measures of a request that was among the worst so far, or begins anew. What counts is the longest wait for /livez; the
processor time of the server's front breaks ties.

Ends with 1 if /livez was ever silent for longer than --most seconds, if a request was refused or failed, but for a 503,
if the front took more memory than --memory MiB, or if afterwards something runs or answers differ.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types

from tools.field_fuzz import HOST, at_rest, probes
from tools.local_server import TESSERA, free_port, started

AT_ONCE = 4
ROUND_SECONDS = 8.0
"""After which those who asked leave."""
PROBE_SECONDS = 0.02
PROBE_TIMEOUT = 30.0
NUM_WORST = 12
"""Requests that are among the worst."""
ANEW = 0.3
"""The share of rounds that begin with a request of their own."""
UNREAD = 0.25
"""The share of streams whose answers are not read."""
READ_AT_ONCE = 1 << 16
MIB = 1 << 20
RIGHT = (0, 200, 503)
"""Statuses of requests that the server takes; 0: the round ended before it answered."""
TOO_LONG = "context_length_exceeded"
"""What a refusal may say: the demo model reads few tokens, and characters that are drawn do not tell how many."""

Measures = Mapping[str, int]
Bounds = Mapping[str, tuple[int, int]]


# ---- requests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Requests to one path. bounds: the least and most of each measure; a measure of 0 leaves its field out."""

    path: str
    bounds: Bounds
    body: Callable[[Measures], dict[str, Any]]


def text(characters: int) -> str:
    """Words that no two tokens share, so that nothing is cached between them."""
    return " ".join(f"w{number:x}" for number in range(characters // 6 + 1))[:characters] or "x"


def alike(count: int, length: int) -> list[str]:
    """Strings that differ in their last characters."""
    return ["a" * max(length - 4, 0) + f"{number:04x}" for number in range(count)]


def schema(properties: int, depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string", "pattern": "[a-z]{1,8}(-[a-z]{1,8})*"}
    for level in range(depth):
        names = [f"p{level}_{number}" for number in range(max(properties // max(depth, 1), 1))]
        inner = {"type": "object", "properties": dict.fromkeys(names, inner) if level == 0 else {names[0]: inner}}
        inner["required"] = names[:1]
    return inner


SAMPLED = {
    "n": (1, 64), "max_tokens": (1, 128), "logprobs": (0, 20), "stop": (0, 64), "stop_chars": (4, 64),
    "bad_words": (0, 1024), "bad_chars": (4, 32), "logit_bias": (0, 300), "allowed": (0, 500), "stream": (0, 1),
    "min_tokens": (0, 100),
}  # fmt: skip


def sampled(measures: Measures) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "n": measures["n"], "max_tokens": measures["max_tokens"], "stream": bool(measures["stream"]),
        "temperature": 1.0, "ignore_eos": True, "min_tokens": min(measures["min_tokens"], measures["max_tokens"]),
    }  # fmt: skip
    if measures["stop"]:
        fields["stop"] = alike(measures["stop"], measures["stop_chars"])
    if measures["bad_words"]:
        fields["bad_words"] = alike(measures["bad_words"], measures["bad_chars"])
    if measures["logit_bias"]:
        fields["logit_bias"] = {str(token): 0.5 for token in range(4, 4 + measures["logit_bias"])}
    if measures["allowed"]:
        fields["allowed_token_ids"] = list(range(4, 4 + measures["allowed"]))
    return fields


def completions(measures: Measures) -> dict[str, Any]:
    fields = sampled(measures) | {
        "prompt": [text(measures["chars"])] * measures["prompts"],
        "echo": bool(measures["echo"]),
    }
    if measures["logprobs"]:
        fields["logprobs"] = measures["logprobs"]
    return fields


def chat(measures: Measures) -> dict[str, Any]:
    share = measures["chars"] // measures["messages"]
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text(share)} for number in range(measures["messages"])]
    fields = sampled(measures) | {"messages": [*messages, {"role": "user", "content": "x"}]}
    if measures["logprobs"]:
        fields |= {"logprobs": True, "top_logprobs": measures["logprobs"]}
    if measures["tools"]:
        parameters = schema(measures["properties"], 2)
        fields["tools"] = [
            {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}
            for number in range(measures["tools"])
        ]
    elif measures["depth"]:
        shape = {"name": "s", "schema": schema(measures["properties"], measures["depth"])}
        fields["response_format"] = {"type": "json_schema", "json_schema": shape}
        fields.pop("allowed_token_ids", None)  # with a grammar they may leave no token
    return fields


def long_texts(measures: Measures) -> dict[str, Any]:
    """More than the demo's context holds, so refused once it is tokenized."""
    return {"prompt": [text(measures["chars"] // measures["prompts"])] * measures["prompts"]}


def long_chat(measures: Measures) -> dict[str, Any]:
    letters = "\u4e2d" if measures["wide"] else "word "
    content = letters * (measures["chars"] // measures["messages"] // len(letters) + 1)
    return {"messages": [{"role": "user", "content": content}] * measures["messages"]}


def responses(measures: Measures) -> dict[str, Any]:
    share = measures["chars"] // measures["items"]
    items = [{"role": "user", "content": text(share)} for _ in range(measures["items"])]
    fields: dict[str, Any] = {
        "input": items, "max_output_tokens": max(measures["max_tokens"], 16), "stream": bool(measures["stream"]),
        "store": bool(measures["store"]),
    }  # fmt: skip
    if measures["logprobs"]:
        fields |= {"top_logprobs": measures["logprobs"], "include": ["message.output_text.logprobs"]}
    return fields


def decisions(measures: Measures) -> dict[str, Any]:
    choices = [{"value": f"choice {number}"} for number in range(measures["choices"])]
    question = {"type": "choice", "instructions": text(measures["chars"]), "choices": choices}
    return {"input": text(measures["input"]), "questions": [question] * measures["questions"]}


def systemone(measures: Measures) -> dict[str, Any]:
    criteria = {f"choice {number}": None for number in range(measures["choices"])}
    question = {"type": "choice", "instructions": text(measures["chars"]), "criteria": criteria}
    questions = {f"question {number}": question for number in range(measures["questions"])}
    return {"state": text(measures["input"]), "questions": questions}


PROMPT = {"prompts": (1, 8), "chars": (1, 2000), "echo": (0, 1)}
FAMILIES = (
    Family("/v1/completions", SAMPLED | PROMPT, completions),
    Family("/v1/completions", SAMPLED | PROMPT | {"n": (1, 4), "prompts": (1, 64)}, completions),
    Family("/v1/completions", SAMPLED | PROMPT | {"n": (64, 128), "prompts": (1, 1)}, completions),
    Family("/v1/completions", {"chars": (1, 8_000_000), "prompts": (1, 4)}, long_texts),
    Family("/v1/completions", {"ids": (1, 2_000_000)}, lambda measures: {"prompt": [300] * measures["ids"]}),
    Family("/v1/chat/completions", {"chars": (1, 8_000_000), "messages": (1, 1000), "wide": (0, 1)}, long_chat),
    Family(
        "/v1/chat/completions",
        {
            **SAMPLED, "messages": (1, 100), "chars": (100, 2000), "tools": (0, 60), "properties": (1, 60),
            "depth": (0, 12),
        },
        chat,
    ),
    Family(
        "/v1/responses",
        {
            "items": (1, 40), "chars": (40, 2000), "max_tokens": (16, 512), "logprobs": (0, 20), "stream": (0, 1),
            "store": (0, 1),
        },
        responses,
    ),
    Family(
        "/v1/decisions", {"questions": (1, 400), "choices": (2, 40), "chars": (1, 200), "input": (1, 400)}, decisions
    ),
    Family(
        "/v1/systemone", {"questions": (1, 64), "choices": (2, 40), "chars": (1, 200), "input": (1, 400)}, systemone
    ),
    Family(
        "/tokenize", {"chars": (1, 2_000_000), "spelled": (0, 1)},
        lambda measures: {"prompt": text(measures["chars"]), "return_token_strs": bool(measures["spelled"])},
    ),
    Family("/detokenize", {"tokens": (1, 500_000)}, lambda measures: {"tokens": [300] * measures["tokens"]}),
)  # fmt: skip


@dataclass
class MeasuredRequest:
    """A request and what it cost."""

    family: Family
    measures: dict[str, int]
    # Whether its stream is not read.
    unread: bool = False
    # Seconds that /livez took at most.
    silence: float = 0.0
    # Seconds of the front's processor time.
    front: float = 0.0
    # Statuses, 0 if the round ended before; and what refusals say.
    answers: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def drawn(cls, draw: random.Random) -> MeasuredRequest:
        family = draw.choice(FAMILIES)
        measures = {name: between(draw, *bounds) for name, bounds in family.bounds.items()}
        return cls(family, measures, draw.random() < UNREAD)

    def changed(self, draw: random.Random) -> MeasuredRequest:
        measures = dict(self.measures)
        for name in draw.sample([*measures], min(draw.choice((1, 1, 2, 3)), len(measures))):
            least, most = self.family.bounds[name]
            value = draw.choice((measures[name] * 2 + 1, measures[name] // 2, most, least, between(draw, least, most)))
            measures[name] = min(max(value, least), most)
        return MeasuredRequest(self.family, measures, self.unread != (draw.random() < 0.1))

    @property
    def cost(self) -> tuple[float, float]:
        return self.silence, self.front

    def __str__(self) -> str:
        shown = " ".join(f"{name}={value}" for name, value in self.measures.items() if value)
        unread = " unread" * (self.unread and bool(self.measures.get("stream")))
        return f"{self.family.path} {shown}{unread}: {sorted({status for status, _ in self.answers})}"


def parsed(line: str) -> MeasuredRequest:
    """The request of a line that this program printed."""
    path, *words = line.partition(": ")[0].split()
    given = {name: int(value) for name, _, value in (word.partition("=") for word in words if "=" in word)}
    family = next(one for one in FAMILIES if one.path == path and given.keys() <= one.bounds.keys())
    measures = {name: max(given.get(name, 0), least) for name, (least, _) in family.bounds.items()}
    return MeasuredRequest(family, measures, "unread" in words)


def between(draw: random.Random, low: int, high: int) -> int:
    """Small and large numbers alike; sometimes one of the ends."""
    if draw.random() < 0.3:
        return draw.choice((low, high))
    return min(max(round(math.pow(high + 1, draw.random())) - 1, low), high)


def ask(port: int, request: MeasuredRequest, body: bytes, ended: float) -> tuple[int, str]:
    """One of MeasuredRequest.answers, which is read until `ended`, on time.monotonic()."""
    connection = http.client.HTTPConnection(HOST, port, timeout=max(ended - time.monotonic(), 0.1))
    try:
        connection.request("POST", request.family.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            return int(response.status), response.read().decode(errors="replace")
        if request.unread and request.measures.get("stream"):
            time.sleep(max(ended - time.monotonic(), 0.0))
        while time.monotonic() < ended and response.read(READ_AT_ONCE):
            pass
        return int(http.client.OK), ""
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


# ---- the server -----------------------------------------------------------------------------------------------------


def probe(port: int, link: Connection) -> None:
    """Asks /livez until the link says that it is enough; says the longest wait whenever it is asked."""
    longest = 0.0
    while True:
        while link.poll():
            if not link.recv():
                return
            link.send(longest)
            longest = 0.0
        began = time.monotonic()
        connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_TIMEOUT)
        try:
            connection.request("GET", "/livez")
            right = connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            right = False
        finally:
            connection.close()
        longest = max(longest, time.monotonic() - began if right else PROBE_TIMEOUT)
        time.sleep(PROBE_SECONDS)


class Watched:
    """A server's front: its processor time and memory, and how long /livez takes."""

    def __init__(self, process: int, link: Connection) -> None:
        self._front = psutil.Process(process)
        self._link = link
        self.peak = 0

    def silence(self) -> float:
        """The longest wait since the last call."""
        self._link.send(True)
        longest: float = self._link.recv()
        return longest

    def seconds(self) -> float:
        times = self._front.cpu_times()
        return float(times.user + times.system)

    def look(self, ended: threading.Event) -> None:
        while not ended.wait(0.1):
            self.peak = max(self.peak, self._front.memory_info().rss)


def play(port: int, request: MeasuredRequest, watched: Watched) -> None:
    """One round."""
    body = json.dumps(request.family.body(request.measures), ensure_ascii=False).encode()
    watched.silence()
    before, ended = watched.seconds(), time.monotonic() + ROUND_SECONDS

    def ask_once() -> None:
        request.answers.append(ask(port, request, body, ended))

    threads = [threading.Thread(target=ask_once) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    request.silence, request.front = watched.silence(), watched.seconds() - before


def searched(
    port: int, watched: Watched, minutes: float, draw: random.Random, only: MeasuredRequest | None = None
) -> tuple[list[MeasuredRequest], list[str]]:
    """The worst requests, and what was wrong with any. only: the request of every round, instead of a search."""
    worst: list[MeasuredRequest] = []
    wrong: list[str] = []
    rounds, deadline = 0, time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        anew = not worst or draw.random() < ANEW
        request = MeasuredRequest.drawn(draw) if anew else draw.choice(worst).changed(draw)
        if only is not None:
            request = MeasuredRequest(only.family, only.measures, only.unread)
        play(port, request, watched)
        rounds += 1
        if refusals := [said for status, said in request.answers if status not in RIGHT and TOO_LONG not in said]:
            wrong.append(f"refused: {request}: {refusals[0]}")
        worst = sorted([*worst, request], key=lambda request: request.cost, reverse=True)[:NUM_WORST]
        if request is worst[0] or rounds % 20 == 0:
            print(
                f"round {rounds}: silent for {worst[0].silence:.3f} s, front {worst[0].front:.2f} s: {worst[0]}",
                flush=True,
            )
    print(f"{rounds} rounds of {AT_ONCE} requests")
    return worst, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", default="1", help="any text")
    parser.add_argument("--only", type=parsed, metavar="LINE", help="the request of a line that was printed, again")
    parser.add_argument("--most", type=float, default=0.1, help="seconds that /livez may take")
    parser.add_argument("--memory", type=int, default=1024, help="MiB that the front may take")
    options = parser.parse_args()
    port = free_port()
    mine, theirs = multiprocessing.Pipe()
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        command = (*TESSERA, "--port", str(port), "--disable-log-requests", "--kv-cache-memory-bytes", "256MiB")
        with started(command, port, log=log) as server:
            before = probes(port)
            prober = multiprocessing.get_context("spawn").Process(target=probe, args=(port, theirs), daemon=True)
            prober.start()
            watched, over = Watched(server.pid, mine), threading.Event()
            looking = threading.Thread(target=watched.look, args=(over,))
            looking.start()
            try:
                worst, wrong = searched(port, watched, options.minutes, random.Random(options.seed), options.only)
            finally:
                over.set()
                looking.join()
                mine.send(False)
            wrong += [f"still runs: {busy}" for busy in [at_rest(port)] if busy]
            wrong += ["answers differ from those before"] if probes(port) != before else []
        log.seek(0)
        errors = [line for line in log.read().decode(errors="replace").splitlines() if "Traceback" in line]
    wrong += [f"in the log: {line}" for line in errors[:5]]
    wrong += [f"/livez took {one.silence:.3f} s beside {one}" for one in worst if one.silence > options.most]
    if watched.peak > options.memory * MIB:
        wrong.append(f"the front took {watched.peak // MIB} MiB")
    report(worst, wrong, watched.peak)
    return bool(wrong)


def told(request: MeasuredRequest) -> str:
    return f"{request.silence:.3f} s silent, {request.front:.2f} s of the front: {request}"


def report(worst: Sequence[MeasuredRequest], wrong: Sequence[str], peak: int) -> None:
    for one in worst[:5]:
        print(told(one))
    print(f"the front took {peak // MIB} MiB at most")
    print("\n".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
