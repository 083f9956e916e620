"""Measures what a token costs the front end process: its text and its line of a stream; everything the front end does
for it; and what a chat pays for rendering and tokenizing its prompt in another process."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import uvloop
from msgspec.json import encode

from tessera.arrays import int32
from tessera.config import EngineConfig, ModelConfig
from tessera.config.locate import demo_folder
from tessera.engine.frontend import FrontEnd
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.scheduler.outputs import EngineCoreOutputs
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.prepare import Identity
from tessera.server.openai.chunks import ChunkWriter, piece
from tessera.text import IncrementalDetokenizer, Tokenizer
from tessera.text.worker import ChatJob, Start, Texts
from tessera.text.workers import TextWorkers

TEXT = (
    "The quick brown fox, which nobody had asked, jumped over 12 lazy dogs; then it said: “Füchse fressen Mäuse” — "
    "and 狐狸 slept. def area(width: float, height: float) -> float:\n    return width * height\n\n"
)


def writer() -> ChunkWriter:
    generation = SimpleNamespace(force_include_usage=False, model=SimpleNamespace(fingerprint="fp_0123456789ab"))
    identity = Identity("chatcmpl-0123456789abcdef", "a-model", 1_700_000_000)
    return ChunkWriter(identity, "chat.completion.chunk", generation, GenerationFields(model="a-model"))


def line(stream: ChunkWriter, text: str) -> bytes:
    """The line of a chat's stream for this text."""
    return stream.chunk(0, piece(0, b'"delta":{"content":' + encode(text) + b"}"))


def measure_lines(streams: int, steps: int) -> float:
    """Microseconds per token for detokenizing and writing lines, for concurrent streams, in the median step."""
    tokenizer = Tokenizer.from_folder(demo_folder())
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    open_streams = [(IncrementalDetokenizer(tokenizer, ids[:8]), writer()) for _ in range(streams)]
    took = []
    for step in range(len(ids) + steps):
        began = time.perf_counter()
        for place, (detokenizer, stream) in enumerate(open_streams):
            line(stream, detokenizer.append((ids[(step + place) % len(ids)],)))
        took.append(time.perf_counter() - began)
    return float(np.median(took[len(ids) :])) / streams * 1e6


def measure_front(streams: int, steps: int) -> float:
    """Microseconds per token from the engine's message to the lines of the streams, in the median step."""
    tokenizer = Tokenizer.from_folder(demo_folder())
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    length = 16 + len(ids) + steps
    config = EngineConfig(ModelConfig("", "a-model", {}, tokenizer.vocab_size, length), "")
    front = FrontEnd(config, tokenizer, max_model_len=length)
    params = SamplingParams(max_tokens=length - 8, output_kind=RequestOutputKind.DELTA)
    states = [
        front.submit(front.prepare(ids[:8], params), params, str(number), arrival=time.monotonic())
        for number in range(streams)
    ]
    lines = {state.request_id: writer() for state in states}
    keys = np.array([state.requests[0].key for state in states])
    counts = np.ones(streams, np.int32)
    took = []
    for step in range(len(ids) + steps):
        outputs = EngineCoreOutputs(keys, counts, int32([ids[(step + place) % len(ids)] for place in range(streams)]))
        began = time.perf_counter()
        for state in front.update(outputs, time.monotonic()).changed:
            output = state.take()
            assert output is not None
            line(lines[state.request_id], output.outputs[0].text)
        took.append(time.perf_counter() - began)
    return float(np.median(took[len(ids) :])) / streams * 1e6


def measure_hop(times: int) -> tuple[float, float]:
    """Milliseconds to turn a short chat into token ids, in a text worker and in this process; medians."""
    job = ChatJob([{"role": "user", "content": TEXT}])
    texts = Texts(Tokenizer.from_folder(demo_folder()))

    async def in_a_worker() -> list[float]:
        took = []
        async with TextWorkers(Start(str(demo_folder()))) as workers:
            for _ in range(times):
                began = time.perf_counter()
                await workers.chat(job)
                took.append(time.perf_counter() - began)
        return took

    def in_place() -> float:
        began = time.perf_counter()
        texts.do(job)
        return time.perf_counter() - began

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worker = runner.run(in_a_worker())
    place = [in_place() for _ in range(times)]
    return float(np.median(worker)) * 1e3, float(np.median(place)) * 1e3
