"""The text workers: what a hostile tokenizer does to them, to the jobs beside it and to the front."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tessera.cli.model_text import TemplateOptions, text_workers_of
from tessera.config import EngineConfig, ModelConfig
from tessera.errors import RequestError, TextLimitError, TextWorkerError
from tessera.processes import job_queue
from tessera.processes.job_limits import JobLimits
from tessera.processes.job_queue import JobQueue
from tessera.processes.job_worker import JobWorker
from tessera.sampling_params import SamplingParams, StructuredOutputsParams
from tessera.text import Tokenizer, Vocabulary, job_packing
from tessera.text import worker as worker_module
from tessera.text import workers as workers_module
from tessera.text.blocking_workers import BlockingTextWorkers
from tessera.text.grammar import byte_tokenizer, compile_grammar, compile_source
from tessera.text.job_packing import LONG_JOB
from tessera.text.worker import Answer, ChatJob, EncodeJob, GrammarJob, Grammars, Job, Start, WorkerReady
from tessera.text.workers import TextWorkers

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


def growing(factor: int, times: int) -> dict[str, Any]:
    """A normalizer that makes `factor` of each `#`, so many times over."""
    step = {"type": "Replace", "pattern": {"String": "#"}, "content": "#" * factor}
    return {"type": "Sequence", "normalizers": [step] * times}


GROWING = growing(4000, 3)
# Half a million characters, each replaced again and again: much time and little memory, on a machine of any speed.
TURNING = growing(2, 19)
TURNING["normalizers"] += [
    {"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in (("#", "!"), ("!", "#")) * 1000
]
# A search that tries every way to cut a run of `a` before it gives up.
PANICKING = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
}
Served = Callable[..., AbstractAsyncContextManager[TextWorkers]]


def write(folder: Path, tokenizer: tokenizers.Tokenizer, **parts: Any) -> Path:
    """parts: of tokenizer.json, in place of the tokenizer's."""
    folder.mkdir(exist_ok=True)
    state = {**json.loads(tokenizer.to_str()), **parts}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def test_the_worker_says_what_a_prompt_has_of_the_answer(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", trained["byte_level"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"response_template": {"fields": 2**70}}))
    async with TextWorkers(Start(str(folder))) as workers:
        assert json.loads(workers.response_template) == {"fields": 2**70}
        long = [{"role": "user", "content": "a" * 100_000}]
        assert len((await workers.chat(ChatJob(long, anchor="none"))).begun) == 65_536
        for anchor, begun in ((r"\[", "b]"), (r"\[a\]", "[b]"), ("none", "[a][b]"), ("", "")):
            job = ChatJob([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], anchor=anchor)
            assert (await workers.chat(job)).begun == begun


async def test_an_anchor_that_takes_too_long_ends_the_job_alone(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    async with TextWorkers(Start(str(write(tmp_path / "model", trained["byte_level"])))) as workers:
        job = ChatJob([{"role": "user", "content": "a" * 60}], anchor=r"(?:a|aa)+\Z")
        with pytest.raises(TextLimitError):
            await workers.chat(job)
        assert await workers.encode(["a"])


@pytest.fixture
def served(trained: dict[str, tokenizers.Tokenizer], tmp_path: Path) -> Served:
    """Workers of a byte-level tokenizer with other parts."""

    @asynccontextmanager
    async def serve(**parts: Any) -> AsyncIterator[TextWorkers]:
        async with TextWorkers(Start(str(write(tmp_path / "model", trained["byte_level"], **parts)))) as workers:
            yield workers

    return serve


def chat(content: str) -> ChatJob:
    return ChatJob([{"role": "user", "content": content}], text=True)


async def test_what_comes_back_is_what_the_tokenizer_and_the_template_say(
    served: Served, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    texts = ["", "Zażółć 世界 😀", "two words " * LONG_JOB]
    async with served() as workers:
        assert workers.has_template
        assert await workers.encode(texts, add_special_tokens=False) == [tokenizer.encode(t, False) for t in texts]
        answer = await workers.chat(chat("Hi"))
        assert (answer.text, answer.ids) == ("[Hi]", [tokenizer.encode("[Hi]", False)])
        assert workers.vocabulary.decode(answer.ids[0]) == "[Hi]"
        assert await workers.decode(answer.ids[0]) == b'"[Hi]"'
        listed = await workers.list_tokens(EncodeJob(["Hi there"], spelled=True))
        ids = json.loads(listed.ids)
        assert (listed.count, ids) == (len(ids), tokenizer.encode("Hi there"))
        assert json.loads(listed.spelled) == [tokenizer.token(token) for token in ids]
        assert workers.restarts == 0


async def test_a_grammar_is_checked_where_it_can_do_no_harm(served: Served) -> None:
    def params(regex: str | None) -> SamplingParams:
        return SamplingParams(structured_outputs=None if regex is None else {"regex": regex})

    async with served() as workers:
        await workers.check_grammar(params(None))
        await workers.check_grammar(params("[a-z]+"))
        for regex, said in (("(a", "unclosed group"), (r"[^\s\S]", "no text is allowed")):
            with pytest.raises(RequestError, match=said) as refused:
                await workers.check_grammar(params(regex))
            assert refused.value.param == "structured_outputs.regex"
        assert await workers.decode((await workers.encode(["a"]))[0]) == b'"a"'
        assert workers.restarts == 0


async def test_a_grammar_that_was_right_is_not_compiled_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "MAX_GRAMMARS", 2)
    compiled: list[str | None] = []
    async with served() as workers:
        ask = workers._ask

        async def counting(job: Any, kind: Any, owner: str) -> Any:
            compiled.append(job.params.regex)
            return await ask(job, kind, owner)

        monkeypatch.setattr(workers, "_ask", counting)
        for regex in ("a", "b", "a", "(", "(", "c", "a", "b"):
            with pytest.raises(RequestError) if regex == "(" else nullcontext():
                await workers.check_grammar(SamplingParams(structured_outputs={"regex": regex}))
    assert compiled == ["a", "b", "(", "(", "c", "b"]


async def test_a_checked_grammar_comes_with_what_an_engine_compiles(served: Served) -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a<|im_end|>b"}}
    async with served() as workers:
        for asked, taken in (({"json": {"const": 5}}, b"5"), ({"structural_tag": tag}, None)):
            params = SamplingParams(structured_outputs=asked)
            checked = await workers.check_grammar(params)
            assert params.grammar_source is None
            assert checked.grammar_source is not None
            assert await workers.check_grammar(checked) is checked
            if taken is None:
                (token,) = (await workers.encode(["<|im_end|>"], add_special_tokens=False))[0]
                assert f"<[{token}]>" in checked.grammar_source.grammars
            else:
                assert compile_source(checked.grammar_source, byte_tokenizer()).consume_tokens(list(taken))


def test_a_grammar_that_is_too_long_to_be_sent_is_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "MAX_SOURCE_CHARS", 600)
    grammars = Grammars(Start(None))
    for choice, is_sent in (("a", True), ("a" * 600, False)):
        checked = grammars.do(GrammarJob(StructuredOutputsParams(choice=[choice])))
        assert (checked.source is not None) is is_sent


@pytest.mark.parametrize("allow", [False, True])
async def test_objects_are_closed_or_open_as_the_flag_says_where_a_request_does_not(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path, allow: bool
) -> None:
    folder = str(write(tmp_path / "model", trained["byte_level"]))
    model = ModelConfig("", "model", {}, 300, 100, tokenizer=folder)
    config = EngineConfig(model=model, platform="", allow_additional_properties=allow)
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    workers = text_workers_of(config, TemplateOptions())
    assert workers is not None
    async with workers:
        for asked in ({"json": schema}, {"structural_tag": tag}):
            for said, opens in ((None, allow), (True, False), (False, True)):
                given = SamplingParams(structured_outputs={**asked, "disable_additional_properties": said})
                found = (await workers.check_grammar(given)).structured_outputs
                matcher = compile_grammar(found, byte_tokenizer())
                assert bool(matcher.consume_tokens(list(b'{"a":1,"b":null}'))) is opens, (asked, said)


async def test_text_that_a_tokenizer_makes_grow_is_refused_and_the_others_go_on(served: Served) -> None:
    async with served(normalizer=GROWING) as workers:
        grows = asyncio.create_task(workers.encode(["#"]))
        await asyncio.sleep(0.05)
        behind = [asyncio.create_task(workers.chat(chat(str(number)))) for number in range(3)]
        with pytest.raises(TextLimitError, match="more than the limit of 512 MiB of memory") as caught:
            await grows
        assert (caught.value.status, caught.value.code) == (400, "text_limit_exceeded")
        assert [(await task).text for task in behind] == ["[0]", "[1]", "[2]"]
        assert workers.restarts == 1


async def test_text_of_which_a_tokenizer_makes_too_many_tokens_is_refused(served: Served) -> None:
    async with served(normalizer=growing(3000, 1)) as workers:
        with pytest.raises(RequestError, match="more than the limit of 1040 tokens") as caught:
            await workers.encode(["#"], add_special_tokens=False)
        assert caught.value.code == "text_limit_exceeded"
        with pytest.raises(RequestError, match="context length is 64 tokens") as caught:
            await workers.encode(["#"], add_special_tokens=False, max_tokens=64)
        assert caught.value.code == "context_length_exceeded"
        assert workers.restarts == 0


async def test_regular_expression_that_gives_up_is_a_refusal(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library panics, and prints: neither its message nor the text goes to the log."""
    async with served(pre_tokenizer=PANICKING) as workers:
        for number in (1, 2):
            with pytest.raises(RequestError, match="^The model's tokenizer cannot encode this text: ") as caught:
                await workers.encode(["a" * 300 + "!"])
            assert caught.value.status == 400
            assert (await workers.encode(["xyz"]))[0]
            assert workers.restarts == number
    assert [record.getMessage().endswith("another takes its place") for record in caplog.records] == [True, True]
    assert capfd.readouterr().err == ""


async def test_text_that_takes_for_ever_is_ended(served: Served) -> None:
    async with served(normalizer=TURNING) as workers:
        with pytest.raises(TextLimitError, match="took more than the limit of 2 s"):
            await workers.encode(["#"])
        assert (await workers.chat(chat("others"))).text == "[others]"


async def test_short_jobs_do_not_wait_for_a_long_one(served: Served) -> None:
    async with served() as workers:
        long = asyncio.create_task(workers.encode(["The quick brown fox. " * 100_000]))
        await asyncio.sleep(0.05)
        assert (await workers.chat(chat("short"))).text == "[short]"
        assert not long.done()
        assert len((await long)[0]) > 100_000


async def test_a_long_prompt_does_not_wait_for_texts_that_are_only_tokenized(served: Served) -> None:
    async with served() as workers:
        text = "The quick brown fox. " * 20_000
        listing = [asyncio.create_task(workers.list_tokens(EncodeJob([text]))) for _ in range(8)]
        await asyncio.sleep(0)
        assert len((await workers.encode([text], owner="another"))[0]) > 20_000
        assert not listing[-1].done()
        counts = {(await task).count for task in listing}
        assert len(counts) == 1


async def test_a_worker_is_replaced_if_its_client_left_long_ago(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "_LEFT_SECONDS", 0.05)
    async with served(normalizer=TURNING) as workers:
        endless = asyncio.create_task(workers.list_tokens(EncodeJob(["#" + "b" * LONG_JOB])))
        first = await at_work(workers._listing)
        endless.cancel()
        assert (await workers.list_tokens(EncodeJob(["b" * LONG_JOB]), owner="another")).count > 1
        assert workers._listing._process is not None
        assert workers._listing._process.pid != first
        assert workers.restarts == 0


async def test_a_client_that_leaves_does_not_end_a_worker_that_loads(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading ends when this test says so: each client has been gone for longer than a job at work may go on."""
    monkeypatch.setattr(job_queue, "_LEFT_SECONDS", 0.01)
    async with served() as workers:
        may_load = asyncio.Event()
        load = JobWorker.load

        async def held(process: JobWorker[WorkerReady, Answer]) -> WorkerReady:
            await may_load.wait()
            return await load(process)

        monkeypatch.setattr(JobWorker, "load", held)
        for _ in range(3):
            leaving = asyncio.create_task(workers.list_tokens(EncodeJob(["b" * LONG_JOB])))
            await asyncio.sleep(0.05)
            leaving.cancel()
        first = workers._listing._process
        assert first is not None
        staying = asyncio.create_task(workers.list_tokens(EncodeJob(["b" * LONG_JOB])))
        await asyncio.sleep(0.05)
        may_load.set()
        assert (await staying).count > 1
        assert workers._listing._process is first


async def test_clients_take_turns_at_grammars(served: Served) -> None:
    def params(number: int) -> SamplingParams:
        return SamplingParams(structured_outputs={"regex": f"[a-z]{{{number}}}"})

    async with served() as workers:
        done: list[str] = []

        async def check(number: int, owner: str) -> None:
            await workers.check_grammar(params(number), owner)
            done.append(owner)

        async with asyncio.TaskGroup() as group:
            for number in range(1, 6):
                group.create_task(check(number, "greedy"))
            await asyncio.sleep(0)
            group.create_task(check(9, "other"))
    assert done.index("other") <= 2


async def test_job_whose_client_has_gone_is_dropped(served: Served) -> None:
    """One that waits is not done, and what is said of one that runs is nobody's."""
    async with served() as workers:
        slow = asyncio.create_task(workers.chat(chat("x" * 50_000)))
        await asyncio.sleep(0)
        gone = [asyncio.create_task(workers.chat(ChatJob([], template="{{ 1 / 0 }}"))) for _ in range(3)]
        await asyncio.sleep(0)
        for task in (slow, *gone):
            task.cancel()
        assert (await workers.chat(chat("next"))).text == "[next]"
        assert workers.restarts == 0


def pids() -> list[int]:
    """Of this process's text workers."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [int(pid) for pid, parent, args in rows if int(parent) == os.getpid() and "-m tessera.text " in args]


async def at_work(queue: JobQueue[WorkerReady, Answer], other_than: int = 0) -> int:
    """The process id of a queue's worker, once it has loaded its files and has had a moment to begin its job."""
    async with asyncio.timeout(60):
        while queue._process is None or queue._process.ready is None or queue._process.pid == other_than:  # noqa: ASYNC110  (another task's doing)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return queue._process.pid


async def test_worker_that_something_else_kills_is_replaced_and_its_job_done_again(served: Served) -> None:
    async with served() as workers:
        os.kill(pids()[0], signal.SIGKILL)  # at rest
        assert (await workers.chat(chat("a"))).text == "[a]"
        long = asyncio.create_task(workers.encode(["The quick brown fox. " * 100_000]))
        os.kill(await at_work(workers._long), signal.SIGKILL)
        assert len((await long)[0]) > 100_000
        assert workers.restarts == 2


async def test_worker_that_is_killed_again_and_again_is_not_the_request_s_fault(
    served: Served,
) -> None:
    async with served() as workers:
        job = asyncio.create_task(workers.chat(ChatJob([{"role": "user"}], template="{{ 10 ** (10 ** 10) }}")))
        first = await at_work(workers._short)
        os.kill(first, signal.SIGKILL)
        os.kill(await at_work(workers._short, other_than=first), signal.SIGKILL)
        with pytest.raises(TextWorkerError, match="ended twice") as caught:
            await job
        assert caught.value.status == 503


async def test_worker_that_stands_still_is_replaced_and_its_job_done_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is too busy: the time that passed says nothing about the job."""
    monkeypatch.setattr(JobLimits, "clock_seconds", 4.0)
    async with served() as workers:
        os.kill(pids()[0], signal.SIGSTOP)
        assert (await workers.chat(chat("a"))).text == "[a]"
        assert workers.restarts == 1


async def test_closing_ends_a_worker_that_is_at_work(served: Served) -> None:
    """It stands still, as one does whose library holds it: it would never be done."""
    async with served() as workers:
        os.kill(pids()[0], signal.SIGSTOP)
        job = asyncio.create_task(workers.encode(["The quick brown fox."]))
        await asyncio.sleep(0.3)
        await asyncio.wait_for(workers.close(), 20)
        with pytest.raises(asyncio.CancelledError):
            await job
        with pytest.raises(TextWorkerError, match="closed"):
            await workers.encode(["x"])
    assert pids() == []


PARENT = """
import asyncio, sys
from tessera.text.worker import ChatJob, Start
from tessera.text.workers import TextWorkers

async def main():
    async with TextWorkers(Start(sys.argv[1])) as workers:
        job = asyncio.create_task(workers.chat(ChatJob([{"role": "user"}], template="{% for a in range(99999) %}"
            "{% for b in range(99999) %}{% endfor %}{% endfor %}")))
        await asyncio.sleep(0.3)
        print(workers._short.begin().pid, flush=True)
        await job

asyncio.run(main())
"""


LIMITED = """
import resource, sys
from pathlib import Path
for kind, most in ((resource.RLIMIT_CPU, 1000), (resource.RLIMIT_AS, 64 << 30)):
    resource.setrlimit(kind, (most, most))
from tessera.text.worker import Start
from tessera.text.blocking_workers import BlockingTextWorkers
workers = BlockingTextWorkers(Start(sys.argv[1]))
workers.ready()
workers.encode(["some text"])
print(Path(f"/proc/{workers._workers._short.begin().pid}/limits").read_text())
workers.close()
"""


def test_a_worker_starts_below_the_hard_limits_of_a_shell_and_keeps_them(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", trained["byte_level"])
    run = [sys.executable, "-c", LIMITED, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rows = {line[:26].strip(): line[26:].split() for line in done.stdout.splitlines()}
    for name, hard in (("Max cpu time", 1000), ("Max address space", 64 << 30)):
        soft, most = map(int, rows[name][:2])
        assert most == hard
        assert soft < hard


UNCLOSED = """
import sys
from tessera.text.worker import Start
from tessera.text.blocking_workers import BlockingTextWorkers
workers = BlockingTextWorkers(Start(sys.argv[1]))
print(workers.encode(["some text"]))
"""


def test_a_script_that_does_not_close_its_workers_ends_without_a_word(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", trained["byte_level"])
    run = [sys.executable, "-c", UNCLOSED, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[[")


def test_worker_dies_with_its_parent_in_the_middle_of_a_job(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", trained["byte_level"])
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_callers_without_an_event_loop(trained: dict[str, tokenizers.Tokenizer], tmp_path: Path) -> None:
    workers = BlockingTextWorkers(Start(str(write(tmp_path / "model", trained["byte_level"]))))
    try:
        workers.ready()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: workers.chat(chat(str(number))).text, range(40)))
        assert answers == [f"[{number}]" for number in range(40)]
        with pytest.raises(RequestError, match="half of a surrogate pair"):
            workers.encode(["\ud800"])
        with pytest.raises(RequestError, match="value of type 'object'"):
            workers.chat(ChatJob([{"role": "user", "content": object()}]))
        with pytest.raises(RequestError, match="64 bits"):
            workers.chat(ChatJob([{"role": "user", "content": "x", "number": 2**80}]))
    finally:
        workers.close()
        workers.close()
    assert pids() == []


# ---- what the front reads of a folder -----------------------------------------------------------------------------


def test_front_decodes_without_the_parts_that_encode(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    for kind, tokenizer in tokenizers_by_kind.items():
        folder = write(tmp_path / kind, trained[kind])
        front, ids = Vocabulary.from_folder(folder), tokenizer.encode("Größe, 世界 <s>")
        assert front.decode(ids) == tokenizer.decode(ids)
        assert front.special_ids == tokenizer.special_ids
        assert [front.token_bytes(token) for token in ids] == [tokenizer.token_bytes(token) for token in ids]


def test_normalizer_that_grows_does_not_hold_up_the_front(
    trained: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    """The library normalizes added tokens as it loads them."""
    added = {"id": 5000, "content": "#", "single_word": False, "lstrip": False, "rstrip": False}
    added |= {"normalized": True, "special": False}
    tokens = [*json.loads(trained["byte_level"].to_str())["added_tokens"], added]
    folder = write(tmp_path / "model", trained["byte_level"], normalizer=GROWING, added_tokens=tokens)
    begin = time.process_time()
    assert Vocabulary.from_folder(folder).added_token_texts
    assert time.process_time() - begin < 10


# ---- what holds up the event loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "thread"), [(1, "MainThread"), (LONG_JOB, "text packing")])
async def test_a_long_job_is_packed_on_another_thread(
    served: Served, monkeypatch: pytest.MonkeyPatch, length: int, thread: str
) -> None:
    threads = []
    before = job_packing.packed

    def noted(job: Job) -> bytes:
        threads.append(threading.current_thread().name.partition("_")[0])
        return before(job)

    monkeypatch.setattr(job_packing, "packed", noted)
    async with served() as workers:
        await workers.chat(ChatJob([{"role": "user", "content": [{"type": "text", "text": "a" * length}]}]))
        await workers.encode(["a" * length])
        await workers.decode([1] * length)
    assert threads == [thread] * 3


async def test_long_texts_are_jobs_of_their_own(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[list[str]] = []
    before = job_packing.packed

    def noted(job: Job) -> bytes:
        assert isinstance(job, EncodeJob)
        jobs.append(job.texts)
        return before(job)

    monkeypatch.setattr(job_packing, "packed", noted)
    long = "a " * LONG_JOB
    async with served() as workers:
        ids = await workers.encode(["a", "b", long, "b", "a"])
        assert jobs == [["a", "b"], [long], ["b", "a"]]
        assert ids == [(await workers.encode([text]))[0] for text in ("a", "b", long, "b", "a")]
