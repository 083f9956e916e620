"""The front end's side of the text workers: sends jobs, receives token ids and text, and replaces workers that died.

There are four workers, each with a queue: one for short jobs, so that a chat does not wait for a long text (a running
job cannot be split or suspended), and one each for long prompts, for long texts that are only tokenized, and for
grammars, which are started when the first such job arrives. A worker has one job at a time and the others wait here,
where clients take turns and each has a limit. Hence it is known which job made a worker die, the jobs behind it are not
lost, and a job whose client has disconnected is dropped, or ended if it is at work for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
import weakref
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import msgspec

from tessera.errors import ModelError, RequestError, TesseraError, TextLimitError, TextWorkerError
from tessera.processes.child import Child
from tessera.processes.frames import frame_bytes, read_frame_async
from tessera.processes.processor_time import processor_seconds
from tessera.sampling_params import SamplingParams, StructuredOutputsParams, changed
from tessera.text.conversation import plain_value
from tessera.text.fair_queue import FairQueue
from tessera.text.grammar import FIELD, special_tokens
from tessera.text.tokenizer import Vocabulary, half_a_pair
from tessera.text.worker import (
    LOADING,
    OUT_OF_MEMORY,
    Answer,
    ChatJob,
    Checked,
    Decoded,
    DecodeJob,
    Encoded,
    EncodeJob,
    Failed,
    GrammarJob,
    Job,
    JobLimits,
    Listed,
    Start,
    WorkerReady,
    framed,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

LONG_JOB = 1 << 16
"""A job of at least this many bytes is long: about 20 ms of tokenizing."""
MAX_GRAMMARS = 64
"""How many grammars that were right are remembered."""

_READ_AHEAD = 1 << 20
_WRITE_BYTES = 1 << 18  # of a job at once: what the socket does not take is copied
_MIB = 1 << 20
_STANDING_SHARE = 0.05
"""Of the clock's limit: a worker that has had less processor time in it stands still."""
MOST_WAITING = 256 * _MIB  # of jobs in one queue
_LEFT_SECONDS = 1.0  # a job may go on for so long after its client has left; a new worker takes about as long
REST_SECONDS = 0.02
_UNWATCHED_SECONDS = 0.5  # that a job may take before anybody looks whether its worker works
_VARIABLES = {
    "PYTHONSAFEPATH": "1",
    # Threads would each use memory, and processor time would no longer match elapsed time.
    "TOKENIZERS_PARALLELISM": "false",
    "RUST_BACKTRACE": "0",
    # So that glibc returns what a long text took.
    "MALLOC_MMAP_THRESHOLD_": str(_MIB),
}
_TRIES = 2  # attempts at a job whose worker was killed from outside, or stood still
# Deaths that a job can cause: out of processor time, memory or stack, or a crash in the library.
_JOBS_OWN = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL})


class _Process:
    """One worker: a running `python -m tessera.text` and the socket to it."""

    def __init__(self, start: bytes) -> None:
        """start: a framed Start message. Raises OSError."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = Child(
                "tessera.text", variables=_VARIABLES, new_group=True, dies_with_parent=True, stdin=theirs
            )
        # The worker reads this once it is running; it fits in the socket's buffer.
        self._socket.sendall(start)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.ready: WorkerReady | None = None
        # Runs when this process ends, at the latest.
        self._cleanup = weakref.finalize(self, _end, self._child, self._socket)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.is_running

    async def load(self) -> WorkerReady:
        """Waits until the worker has loaded its files. Raises ModelError or TextWorkerError."""
        if self.ready is not None:
            return self.ready
        answer = None
        with contextlib.suppress(TimeoutError, EOFError, OSError):
            async with asyncio.timeout(LOADING.clock_seconds):
                answer = await self.exchange(None)
        match answer:
            case WorkerReady():
                self.ready = answer
                return answer
            case Failed():
                raise answer.failure.error()
        code = await self.end()
        if code in _JOBS_OWN or code == OUT_OF_MEMORY or code == -signal.SIGKILL:
            raise ModelError(
                "The tokenizer and the chat template of this model cannot be loaded: they take more than "
                f"{LOADING.seconds} s or {LOADING.memory_bytes // _MIB} MiB, or end the process that loads them."
            )
        raise TextWorkerError(f"The text worker did not start: it ended with exit code {code}.")

    async def exchange(self, job: bytes | None) -> Answer:
        """Sends a framed job (None sends nothing) and returns the answer. Raises EOFError or OSError if the worker has
        ended."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=_READ_AHEAD)
        reader, writer = self._streams
        if job is not None:
            for start in range(0, len(job), _WRITE_BYTES):
                writer.write(job[start : start + _WRITE_BYTES])
                await writer.drain()
        answer: Answer = msgspec.msgpack.decode(await read_frame_async(reader), type=Answer)
        return answer

    async def end(self) -> int:
        """Kills the worker if it is running, and returns its exit code."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._child.kill()
        return await asyncio.to_thread(self._child.wait)

    def close(self) -> None:
        """Ends the worker at once and cleans up. May be called again."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._cleanup()


def _end(child: Child, link: socket.socket) -> None:
    child.end()
    link.close()


class _Lane:
    """A queue of jobs and its worker. Belongs to the event loop that first uses it."""

    def __init__(self, start: Start) -> None:
        self.restarts = 0
        self._closed = False
        self._start = framed(start)
        self._process: _Process | None = None
        self._jobs: FairQueue[tuple[bytes, asyncio.Future[Answer]]] = FairQueue(MOST_WAITING)
        self._working: asyncio.Task[None] | None = None

    def begin(self) -> _Process:
        """The worker, started if there is none; it loads its files by itself. Raises TextWorkerError."""
        if self._process is None:
            try:
                self._process = _Process(self._start)
            except OSError as error:
                raise TextWorkerError(f"The text worker did not start: {error.strerror}.") from error
        return self._process

    async def load(self) -> WorkerReady:
        """Raises ModelError or TextWorkerError."""
        return await self.begin().load()

    def check_open(self) -> None:
        """Raises TextWorkerError after close()."""
        if self._closed:
            raise TextWorkerError("The text workers are closed.")

    async def ask(self, job: bytes, owner: str) -> Answer:
        """Runs a job. A job cancelled while it waits is dropped. owner: who takes turns with others. Raises
        TextLimitError, TextWorkerError or OverloadedError."""
        self.check_open()
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name="text worker")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = job, answer
        self._jobs.put(owner, waiting, len(job))
        try:
            return await answer
        finally:
            if not answer.done() or answer.cancelled():
                self._jobs.drop(owner, waiting)

    async def close(self) -> None:
        """Ends the worker at once and cancels waiting jobs. May be called again."""
        self._closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        while len(self._jobs):
            (await self._jobs.get())[1].cancel()
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _work(self) -> None:
        while True:
            job, answer = await self._jobs.get()
            if answer.done():
                continue
            try:
                result = await self._unless_left(job, answer)
            except TesseraError as error:
                if not answer.done():
                    answer.set_exception(error)
            except BaseException:
                answer.cancel()
                raise
            else:
                if not answer.done() and result is not None:
                    answer.set_result(result)

    async def _unless_left(self, job: bytes, answer: asyncio.Future[Answer]) -> Answer | None:
        """The answer to a job. None if its client has left; a worker that goes on with it for long is replaced, but not
        while it loads its files, which the next job needs too."""
        await self._loaded()
        if answer.done():
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as longest:

                def shorten(_: object) -> None:
                    longest.reschedule(loop.time() + _LEFT_SECONDS)

                answer.add_done_callback(shorten)
                try:
                    return await self._done(job)
                finally:
                    answer.remove_done_callback(shorten)
        except TimeoutError:
            pass
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()
            process.close()
        self.begin()
        return None

    async def _done(self, job: bytes) -> Answer:
        limits = JobLimits.for_job(frame_bytes(job))
        for _ in range(_TRIES):
            process = await self._loaded()
            try:
                return await _answered(process, job, limits)
            except TimeoutError:
                await self._replace(process, "stood still")
                continue
            except (EOFError, OSError):
                code = await self._replace(process, "ended")
            if code == -signal.SIGXCPU:
                raise TextLimitError(
                    f"Rendering or tokenizing this text took more than the limit of {limits.seconds} s."
                )
            if code in (OUT_OF_MEMORY, -signal.SIGABRT):
                raise TextLimitError(
                    "Rendering or tokenizing this text needed more than the limit of "
                    f"{limits.memory_bytes // _MIB} MiB of memory."
                )
            if code in _JOBS_OWN:
                raise TextLimitError("Rendering or tokenizing this text crashed the process that did it.")
        raise TextWorkerError(
            "The text worker was ended twice while it was at this request, though it had not reached its limits; the "
            "machine may be too busy. Try again."
        )

    async def _loaded(self) -> _Process:
        """A running worker that has loaded its files. Raises TextWorkerError."""
        process = self.begin()
        if not process.running:
            await self._replace(process, "ended")
            process = self.begin()
        try:
            await process.load()
        except TesseraError as error:
            # It loaded successfully before, so let the next job try again.
            process.close()
            self._process = None
            log.error("the text worker does not come up again: %s", error.message)
            raise TextWorkerError(error.message) from error
        return process

    async def _replace(self, process: _Process, cause: str) -> int:
        """Ends a worker and starts another; returns the exit code of the first."""
        code = await process.end()
        process.close()
        self.restarts += 1
        log.warning("text worker %d %s (%s); another takes its place", process.pid, cause, _describe_exit(code))
        self._process = None
        self.begin()
        return code


async def _answered(process: _Process, job: bytes, limits: JobLimits) -> Answer:
    """Raises TimeoutError if the worker has had hardly any processor time for as long as the clock's limit: it stands
    still, or the machine is too busy. A job that takes too much of it ends the worker by itself. Also raises as
    exchange() does."""
    loop = asyncio.get_running_loop()
    next_look: asyncio.TimerHandle | None = None
    async with asyncio.timeout(None) as standing:

        def look(before: float | None) -> None:
            nonlocal next_look
            used = processor_seconds(process.pid)
            if before is not None and used - before < _STANDING_SHARE * limits.clock_seconds:
                standing.reschedule(loop.time())
            else:
                next_look = loop.call_later(limits.clock_seconds, look, used)

        next_look = loop.call_later(_UNWATCHED_SECONDS, look, None)
        try:
            return await process.exchange(job)
        finally:
            next_look.cancel()


def _describe_exit(code: int) -> str:
    if code == OUT_OF_MEMORY:
        return "out of memory"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


class TextWorkers:
    """A front end's access to a model's tokenizer and chat template: `vocabulary` turns token ids into text in this
    process, incrementally if needed, and the workers do everything else. The first worker starts loading at once, in
    parallel with the engine."""

    def __init__(self, start: Start) -> None:
        """Raises ModelError or TextWorkerError."""
        assert start.tokenizer is not None
        self._short = _Lane(start)
        self._long = _Lane(start)
        self._listing = _Lane(start)
        self._checked: dict[StructuredOutputsParams, Checked] = {}  # the one used last is the last
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="text packing")
        self.has_template = False
        self.template = self.response_template = ""
        process = self._short.begin()
        try:
            self.vocabulary = Vocabulary.from_folder(start.tokenizer)
        except BaseException:
            process.close()
            raise
        special = special_tokens(self.vocabulary, start.eos_token_ids)
        allow = start.allow_additional_properties
        self._grammars = _Lane(Start(None, allow_additional_properties=allow, special_tokens=special))

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced."""
        return sum(lane.restarts for lane in self._lanes)

    @property
    def _lanes(self) -> tuple[_Lane, ...]:
        return self._short, self._long, self._listing, self._grammars

    async def ready(self) -> None:
        """Waits until the first worker has loaded the model's files. Raises ModelError or TextWorkerError."""
        ready = await self._short.load()
        self.has_template, self.template = ready.has_template, ready.template
        self.response_template = ready.response_template

    async def chat(self, job: ChatJob, owner: str = "") -> Encoded:
        """owner: the client, who takes turns with the others. Raises RequestError, TextLimitError, TextWorkerError or
        OverloadedError."""
        return await self._ask(job, Encoded, owner)

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        owner: str = "",
    ) -> list[list[int]]:
        """The token ids of each text; see Tokenizer.encode. owner, errors: as of chat()."""
        ids: list[list[int]] = []
        for some in _grouped(texts):
            ids += (await self._ask(EncodeJob(some, add_special_tokens, max_tokens), Encoded, owner)).ids
        return ids

    async def list_tokens(self, job: ChatJob | EncodeJob, owner: str = "") -> Listed:
        """The tokens of one text as JSON, which takes a fifth of the memory of a list. No prompt waits for such a job
        that is long. owner, errors: as of chat()."""
        job.listed = True
        return await self._ask(job, Listed, owner)

    async def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, *, below: int = 0, owner: str = ""
    ) -> bytes:
        """The text of many ids, as JSON; Vocabulary.decode makes one in this process. below: see DecodeJob. owner,
        errors: as of chat()."""
        return (await self._ask(DecodeJob(list(ids), skip_special_tokens, below), Decoded, owner)).text

    async def check_grammar(self, params: SamplingParams, owner: str = "") -> SamplingParams:
        """The params with a grammar that can be used, and its source; see leniency.compile_leniently. owner, errors: as
        of chat(). Those that were right last are not compiled again: many requests have the same."""
        asked = params.structured_outputs
        if asked is None or params.grammar_source is not None:
            return params
        checked = self._checked.pop(asked, None)
        if checked is None:
            try:
                checked = await self._ask(GrammarJob(asked), Checked, owner)
            except TextLimitError as error:
                raise TextLimitError(
                    f"{FIELD}.{asked.kind} cannot be used: compiling it took more time or memory than it may.",
                    param=f"{FIELD}.{asked.kind}",
                ) from error
        self._checked[asked] = checked
        if checked.instead is not None:
            self._checked[checked.instead] = Checked(checked.source)
        while len(self._checked) > MAX_GRAMMARS:
            del self._checked[next(iter(self._checked))]
        return changed(params, structured_outputs=checked.instead or asked, grammar_source=checked.source)

    async def close(self) -> None:
        """Ends the workers at once. May be called again."""
        self._packing.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    async def _ask(self, job: Job, kind: type[T], owner: str = "") -> T:
        self._short.check_open()
        if _is_long(job):
            data = await asyncio.get_running_loop().run_in_executor(self._packing, _packed_aside, job)
        else:
            data = packed(job)
        lane = self._long
        if isinstance(job, GrammarJob):
            lane = self._grammars
        elif len(data) < LONG_JOB:
            lane = self._short
        elif isinstance(job, DecodeJob) or job.listed:
            lane = self._listing
        answer = await lane.ask(data, owner)
        if isinstance(answer, Failed):
            raise answer.failure.error()
        assert isinstance(answer, kind)
        return answer


def _grouped(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in jobs that are not long, but for texts that are, each of which is a job of its own: others take turns
    with it, and its ids are read at once."""
    some: list[str] = []
    length = 0
    for text in texts:
        if some and length + len(text) >= LONG_JOB:
            yield some
            some, length = [], 0
        some.append(text)
        length += len(text)
    yield some


def give_way() -> None:
    """What a thread does between two long passes over data, of which each holds the interpreter's lock: the event loop
    gives the lock up whenever it waits for its sockets, and needs several turns to answer anyone."""
    time.sleep(REST_SECONDS)


def _packed_aside(job: Job) -> bytes:
    data = packed(job)
    give_way()
    return data


def _is_long(job: Job) -> bool:
    """Whether packing a job holds the event loop up. Counts no more than it has to."""
    room = LONG_JOB
    left: list[Any] = []
    match job:
        case EncodeJob():
            left = [job.texts]
        case DecodeJob():
            room -= len(job.ids)
        case ChatJob():
            left = [job.messages, job.tools]
    while left and room > 0:
        value = left.pop()
        room -= len(value) if isinstance(value, str) else 1
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
    return room <= 0


def packed(job: Job) -> bytes:
    """Encodes a job. Raises RequestError for a value that JSON cannot represent."""
    try:
        return framed(job)
    except UnicodeEncodeError as error:
        raise RequestError(half_a_pair(), param="prompt") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(job, ChatJob):  # raises an error that names the value
            for name in ("messages", "tools", "documents"):
                plain_value(getattr(job, name), name)
            plain_value(job.template_kwargs, "chat_template_kwargs")
        raise RequestError("The request holds a value that is no JSON, or a number of more than 64 bits.") from error


class BlockingTextWorkers:
    """TextWorkers for callers without an event loop: runs one on its own thread. Safe to use from several threads."""

    def __init__(self, start: Start) -> None:
        """Returns before the worker is ready; see ready(). Raises ModelError or TextWorkerError."""
        self._workers = TextWorkers(start)
        self.vocabulary = self._workers.vocabulary
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="text workers", daemon=True)
        thread.start()
        # Runs when this process ends, at the latest: a script need not close what it uses to its end.
        self._cleanup = weakref.finalize(self, _end_blocking, self._workers, self._loop, thread)

    @property
    def restarts(self) -> int:
        return self._workers.restarts

    def ready(self) -> None:
        """See TextWorkers, also for the other methods."""
        self._run(self._workers.ready())

    def chat(self, job: ChatJob) -> Encoded:
        return self._run(self._workers.chat(job))

    def encode(
        self, texts: Sequence[str], add_special_tokens: bool = True, *, max_tokens: int | None = None
    ) -> list[list[int]]:
        return self._run(self._workers.encode(texts, add_special_tokens, max_tokens=max_tokens))

    def check_grammar(self, params: SamplingParams) -> SamplingParams:
        return params if params.structured_outputs is None else self._run(self._workers.check_grammar(params))

    def close(self) -> None:
        """Ends the workers at once. May be called again."""
        self._cleanup()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _end_blocking(workers: TextWorkers, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    asyncio.run_coroutine_threadsafe(workers.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
