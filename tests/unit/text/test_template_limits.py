"""A template takes no more time and memory than a job may, and reaches nothing but its values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tessera.errors import ModelError, RequestError, TextLimitError
from tessera.processes.job_limits import JobLimits
from tessera.text.template import ChatTemplate
from tessera.text.worker import ChatJob, Start
from tessera.text.workers import TextWorkers
from tests.unit.text.hostile_templates import CRASHING, ESCAPES, MALFORMED, STOPPED, TOO_LARGE, TOO_SLOW

MESSAGES = [{"role": "user", "content": "hi"}]
# One allocation, many that grow, in Python and in C, and text that is written; a loop, and a call that never returns.
LARGE_EACH_DAY = {"string_times", "doubling", "doubling_set_block", "join_separator", "output_flood", "keep_alive"}
SLOW_EACH_DAY = {"nested_loops", "power"}


def each_day(templates: Iterable[str], names: set[str]) -> list[Any]:
    """The names of templates; those that meet a limit in the way of another are nightly."""
    return [pytest.param(name, marks=[] if name in names else pytest.mark.nightly) for name in templates]


@pytest.fixture(scope="session")
def folder(trained: dict[str, tokenizers.Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    trained["byte_level"].save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
async def workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TextWorkers]:
    monkeypatch.setattr(JobLimits, "clock_seconds", 120.0)  # a busy machine does not look like a worker that hangs
    async with TextWorkers(Start(str(folder), "{{ messages[0].content }}")) as workers:
        yield workers


async def ended_by(workers: TextWorkers, template: str) -> str:
    """What is said of the limit that a template exceeds; another job is done right after."""
    with pytest.raises(TextLimitError) as caught:
        await workers.chat(ChatJob(MESSAGES, template=template))
    assert (await workers.chat(ChatJob(MESSAGES, text=True))).text == "hi"
    assert workers.restarts == 1
    return caught.value.message


@pytest.mark.parametrize("name", each_day(TOO_LARGE, LARGE_EACH_DAY))
async def test_template_that_needs_too_much_memory_is_ended(workers: TextWorkers, name: str) -> None:
    assert await ended_by(workers, TOO_LARGE[name]) == (
        "Rendering or tokenizing this text needed more than the limit of 512 MiB of memory."
    )


@pytest.mark.parametrize("name", each_day(TOO_SLOW, SLOW_EACH_DAY))
async def test_template_that_takes_too_long_is_ended(workers: TextWorkers, name: str) -> None:
    assert (
        await ended_by(workers, TOO_SLOW[name]) == "Rendering or tokenizing this text took more than the limit of 2 s."
    )


@pytest.mark.parametrize("name", CRASHING)
async def test_template_that_ends_its_process_ends_no_other(workers: TextWorkers, name: str) -> None:
    assert await ended_by(workers, CRASHING[name]) == (
        "Rendering or tokenizing this text crashed the process that did it."
    )


@pytest.mark.parametrize("name", STOPPED)
def test_what_python_stops_itself_is_a_refusal(name: str) -> None:
    with pytest.raises(RequestError, match=r"^The chat template ") as caught:
        ChatTemplate(STOPPED[name]).render(MESSAGES)
    assert caught.value.param == "messages"


async def test_template_that_cannot_be_loaded_within_the_limits_is_a_fault_of_the_model(folder: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded: they take more than 30 s or 2048 MiB"):
        async with TextWorkers(Start(str(folder), "{{ 'a' * 10 ** 11 }}{{ messages }}")):
            pass


@pytest.mark.parametrize("name", ESCAPES)
def test_internals_are_out_of_reach(name: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match=r"^The chat template cannot render these messages: ") as caught:
        ChatTemplate(ESCAPES[name]).render(messages)
    assert " at 0x" not in str(caught.value)
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_template_is_refused_at_load(name: str) -> None:
    with pytest.raises(ModelError, match=r"^The chat template .*[.']?") as caught:
        ChatTemplate(MALFORMED[name])
    assert "\n" not in str(caught.value)


def test_error_names_the_line() -> None:
    with pytest.raises(ModelError, match="in line 3: "):
        ChatTemplate("a\nb\n{% for %}")
