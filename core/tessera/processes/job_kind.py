"""What one kind of job process differs in from another; both of its ends have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tessera.errors import RequestError, TesseraError
from tessera.processes.error_message import ErrorMessage
from tessera.processes.frames import frame
from tessera.processes.job_limits import MIB, JobLimits

R = TypeVar("R")
A = TypeVar("A")

# Exit codes; the process may also be killed by a signal.
OUT_OF_MEMORY = 12
GIVEN_UP = 13  # after sending an answer that says why


class Failed(msgspec.Struct, tag="failed"):
    """A ModelError if the worker could not load its files, a RequestError after that."""

    failure: ErrorMessage


@dataclass(frozen=True)
class JobKind(Generic[R, A]):
    """R: what a worker says once it has loaded its files. A: its answers to jobs, besides Failed."""

    # As messages and the log call the worker.
    name: str
    # The module that its process runs.
    module: str
    # Of the process's environment, besides those of all children.
    variables: Mapping[str, str]
    # While it loads its files.
    loading: JobLimits
    # A job's, by its size in bytes.
    limits: Callable[[int], JobLimits]
    # Of all messages. Raises TypeError, ValueError, OverflowError or RecursionError for what is no plain data.
    encode: Callable[[Any], bytes]
    # What a worker says once it has loaded its files; Failed ends it.
    decode_ready: Callable[[bytes], R | Failed]
    # Its answer to a job.
    decode: Callable[[bytes], A | Failed]
    # What cannot be loaded where loading exceeds its limits: a sentence's beginning.
    files: str
    # What a job does, for the client whose job exceeds its limits: a sentence's beginning.
    work: str
    # The error of a job that exceeds its limits.
    limit_error: type[RequestError]
    # The error of a worker that does not start, was killed from outside, or stood still.
    worker_error: type[TesseraError]
    # What the client reads whose job finds no room.
    overloaded: str
    # Whether the worker narrows the limits of a job to what it finds in it.
    narrowed: bool = False

    def framed(self, message: Any) -> bytes:
        """A message with its length. Raises as encode() does."""
        return frame(self.encode(message))

    def over_time(self, limits: JobLimits) -> str:
        """What the client reads whose job took too much processor time."""
        most = "its size allows" if self.narrowed else f"the limit of {limits.seconds} s"
        return f"{self.work} took more {'time ' * self.narrowed}than {most}."

    def over_memory(self, limits: JobLimits) -> str:
        """What the client reads whose job took too much memory."""
        if self.narrowed:
            return f"{self.work} needed more memory than its size allows."
        return f"{self.work} needed more than the limit of {limits.memory_bytes // MIB} MiB of memory."
