"""An event loop on its own thread. It keeps running while the main thread waits for terminal input, so that the
engine's messages are always handled, and Ctrl-C only interrupts what the main thread waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class BackgroundLoop:
    """Use it in a `with` statement. Work that is still running at the end is cancelled."""

    def __init__(self, loop_factory: LoopFactory | None = None) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self._running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._live, name="event-loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._end = self._running.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the work and returns its result. Interrupting the waiting thread cancels the work; the interrupt is
        raised once the work has ended. The loop's thread makes the coroutine: of one made here, an interrupt that comes
        next would leave a warning that nobody awaited it."""
        running = _Call(work)
        try:
            self._loop.call_soon_threadsafe(running.start)
            running.ended.wait()
        except BaseException:
            # This works even if the work has not started: the two calls run in order.
            self._loop.call_soon_threadsafe(running.cancel)
            running.ended.wait()
            raise
        return running.result()

    def iterate(self, values: AsyncGenerator[T, None]) -> Generator[T]:
        """Iterates over an asynchronous generator, and closes it however the iteration ends."""
        nothing = object()
        turn = asyncio.Lock()  # work interrupted twice may still be ending

        async def following() -> T | object:
            async with turn:
                return await anext(values, nothing)

        async def closed() -> None:
            async with turn:
                await values.aclose()

        try:
            while (value := self.run(following)) is not nothing:
                yield value  # type: ignore[misc]  # it is a T, since it is not `nothing`
        finally:
            self.run(closed)

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enters an asynchronous context manager as a synchronous one."""
        value = self.run(manager.__aenter__)
        try:
            yield value
        finally:
            self.run(partial(manager.__aexit__, None, None, None))

    def _live(self) -> None:
        with self._runner:
            self._runner.run(self._until_end())

    async def _until_end(self) -> None:
        end = asyncio.Event()
        self._running.set_result((asyncio.get_running_loop(), end))
        await end.wait()


class _Call(Generic[T]):
    """A coroutine that another thread waits for. Call start() and cancel() on the loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(lambda _task: self.ended.set())

    def cancel(self) -> None:
        if self._task is None:
            self.ended.set()
        else:
            self._task.cancel()

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()
