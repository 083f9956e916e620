"""A worker takes its next orders while a step's output is still to come."""

from __future__ import annotations

import socket
import threading
from typing import Any

from tessera.arrays import int32
from tessera.executor.messages import Failed, Frames
from tessera.executor.worker_process import Results, tell
from tessera.platform import Ready
from tessera.step import StepOutput

SECONDS = 20


class Coming:
    """An output that comes when the test says so."""

    def __init__(self, step: int) -> None:
        self.step, self.there, self.error = step, threading.Event(), None

    def done(self) -> bool:
        return self.there.is_set()

    def result(self) -> StepOutput:
        assert self.there.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return output(self.step)


def output(step: int) -> StepOutput:
    return StepOutput(step, int32(), int32(), int32())


class Sent:
    """What a Results sends, and the error that ends it."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.errors: list[Exception] = []
        self.results = Results(self.send, self.errors.append)

    def send(self, output: StepOutput) -> None:
        self.steps.append(output.step)
        self.threads.add(threading.current_thread().name)


def test_an_output_that_is_there_is_sent_at_once() -> None:
    sent = Sent()
    for step in range(3):
        sent.results.add(Ready(output(step)))
    assert sent.steps == [0, 1, 2]
    assert sent.threads == {threading.current_thread().name}
    sent.results.close()


def test_outputs_are_waited_for_elsewhere_and_sent_in_the_order_of_their_steps() -> None:
    sent, coming = Sent(), [Coming(step) for step in range(4)]
    coming[1].there.set()
    for one in coming:
        sent.results.add(one)
    assert sent.steps == []
    for one in reversed(coming):
        one.there.set()
    sent.results.close()
    assert sent.steps == [0, 1, 2, 3]
    assert sent.threads == {"results"}


def test_a_step_that_fails_is_the_last_one_told_of() -> None:
    sent, coming = Sent(), [Coming(step) for step in range(3)]
    coming[1].error = RuntimeError("the device is gone")
    for one in coming:
        one.there.set()
        sent.results._coming.put(one)
    sent.results.start()
    sent.results.join(SECONDS)
    assert sent.steps == [0]
    assert [str(error) for error in sent.errors] == ["the device is gone"]


def test_messages_of_two_threads_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sending, receiving = Frames(ours, Any), Frames(theirs, Failed)
        texts = [letter * 100_000 for letter in "ab"]
        threads = [threading.Thread(target=tell, args=(sending, RuntimeError(text))) for text in texts]
        for thread in threads:
            thread.start()
        found = {receiving.receive().message[-1] for _ in threads}
        for thread in threads:
            thread.join(SECONDS)
    assert found == {"a", "b"}
