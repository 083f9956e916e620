"""Encodes the jobs of the text workers, long ones on a thread of their own."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tessera.errors import RequestError
from tessera.text.conversation import plain_value
from tessera.text.tokenizer import half_a_pair
from tessera.text.worker import TEXT, ChatJob, DecodeJob, EncodeJob, Job

LONG_JOB = 1 << 16
"""A job of at least this many bytes is long: about 20 ms of tokenizing."""
REST_SECONDS = 0.02


def give_way() -> None:
    """What a thread does between two long passes over data, of which each holds the interpreter's lock: the event loop
    gives the lock up whenever it waits for its sockets, and needs several turns to answer anyone."""
    time.sleep(REST_SECONDS)


class JobPacker:
    """Encodes jobs where they hold up no event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="text packing")

    async def pack(self, job: Job) -> bytes:
        """See packed()."""
        if _is_long(job):
            return await asyncio.get_running_loop().run_in_executor(self._thread, _packed_aside, job)
        return packed(job)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


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
            left = [job.texts, job.second, dict(job.replacements)]
        case DecodeJob():
            room -= len(job.ids)
        case ChatJob():
            left = [job.messages, job.tools, dict(job.replacements)]
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
        return TEXT.framed(job)
    except UnicodeEncodeError as error:
        raise RequestError(half_a_pair(), param="prompt") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(job, ChatJob):  # raises an error that names the value
            for name in ("messages", "tools", "documents"):
                plain_value(getattr(job, name), name)
            plain_value(job.template_kwargs, "chat_template_kwargs")
        raise RequestError("The request holds a value that is no JSON, or a number of more than 64 bits.") from error
