"""A worker takes its next orders while a step's output is still to come."""

from __future__ import annotations

import socket
import threading
from typing import Any

from tessera.arrays import int32
from tessera.executor.messages import MessageStream, WorkerFailed
from tessera.executor.worker_process import OutputSender, report_failure
from tessera.platform import PlatformError, Ready
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
    """What an OutputSender sends, from which threads, and the error that ends it."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.errors: list[Exception] = []
        self.results = OutputSender(lambda: None, self.send, self.errors.append)
        self.results.start()

    def send(self, output: StepOutput) -> None:
        self.steps.append(output.step)
        self.threads.add(threading.current_thread().name)


def test_outputs_are_sent_in_the_order_of_their_steps() -> None:
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


def test_the_next_order_is_taken_while_the_executor_does_not_receive() -> None:
    """Else a worker and its executor, each with a long message for the other, would wait for ever."""
    receives, sent = threading.Event(), []
    results = OutputSender(lambda: None, lambda _: sent.append(receives.wait(SECONDS)), lambda _: None)
    results.start()
    for step in range(3):
        results.add(Ready(output(step)))
    receives.set()
    results.close()
    assert sent == [True] * 3, "False: add() waited for an output to be received"


def test_nothing_is_sent_after_a_step_that_failed() -> None:
    sent, coming = Sent(), [Coming(step) for step in range(3)]
    coming[1].error = RuntimeError("the device is gone")
    for one in coming:
        one.there.set()
        sent.results.add(one)
    sent.results.join(SECONDS)
    sent.results.close()
    assert sent.steps == [0]
    assert [str(error) for error in sent.errors] == ["the device is gone"]


def test_a_worker_whose_executor_is_gone_ends_quietly() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert report_failure(MessageStream(ours, Any), PlatformError("it is in use")) == PlatformError.exit_code


def test_messages_of_two_threads_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sending, receiving = MessageStream(ours, Any), MessageStream(theirs, WorkerFailed)
        texts = [letter * 100_000 for letter in "ab"]
        threads = [threading.Thread(target=report_failure, args=(sending, RuntimeError(text))) for text in texts]
        for thread in threads:
            thread.start()
        found = {receiving.receive().message[-1] for _ in threads}
        for thread in threads:
            thread.join(SECONDS)
    assert found == {"a", "b"}
