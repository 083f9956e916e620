"""Data parallelism: engines that share nothing behind one front end. Each runs whole requests, and a request goes to
the engine that has most of its prompt cached, as long as that engine's load allows it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.engine.engine_handle import ASLEEP, EngineHandle, Health
from tessera.errors import EngineAsleepError, EngineDeadError, RequestError
from tessera.request import make_cache_key
from tessera.routing import BLOCK_TOKENS, PrefixRouting, hashed_blocks

if TYPE_CHECKING:
    from tessera.engine.engine_handle import EngineLauncher
    from tessera.engine.input_processor import PooledPrompt, Prompt
    from tessera.engine.messages import EngineInfo
    from tessera.text import Vocabulary

log = logging.getLogger(__name__)

_ROOT_BYTES = 16


class EngineGroup:
    """Several EngineHandles with the contract of one. Bound to the event loop that started it."""

    def __init__(self, launchers: Sequence[EngineLauncher], vocabulary: Vocabulary | None) -> None:
        """launchers: of each engine, by rank. Starts nothing; see start()."""
        self.config = launchers[0].config
        self.ranks: list[EngineHandle] = []
        for rank, launcher in enumerate(launchers):
            handle = EngineHandle(launcher, vocabulary)
            handle.others_run = partial(self._others_run, rank)
            self.ranks.append(handle)
        # Checks prompts for all of them.
        self.front_end = self.ranks[0].front_end
        # A request that loses its second engine too stays with it, which finds out whether the request is to blame.
        self.num_moves = 1
        self._sticky = self.config.parallel.sticky_cache_salt
        # Nobody outside can make prompts whose blocks look alike.
        self._root = secrets.token_bytes(_ROOT_BYTES)
        # To fall asleep and to wake up take turns.
        self._changing = asyncio.Lock()
        # Valid after start().
        self._routing: PrefixRouting
        self._ending = False

    async def start(self) -> None:
        """Returns when all engines are ready. Raises the error of the first that fails."""
        tasks = [asyncio.create_task(rank.start()) for rank in self.ranks]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._stop_started(tasks)
            raise
        self._routing = PrefixRouting(self.ranks[0].info.num_cache_tokens // BLOCK_TOKENS)
        for rank in range(len(self.ranks)):
            self._routing.add(rank)

    async def _stop_started(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """The others have cleaned up after themselves."""
        started = [
            rank for rank, task in zip(self.ranks, tasks, strict=True) if not task.cancelled() and not task.exception()
        ]
        await asyncio.gather(*(rank.shutdown() for rank in started))

    def _others_run(self, rank: int) -> bool:
        return any(handle.is_running for number, handle in enumerate(self.ranks) if number != rank)

    # ---- requests -----------------------------------------------------------

    @contextmanager
    def place(
        self, prompt: Prompt | PooledPrompt, cache_salt: str, feature_args: Mapping[str, str], rank: int | None
    ) -> Iterator[EngineHandle]:
        """The engine for a request, while it runs there. Raises RequestError if there is no engine of that rank."""
        blocks = self._blocks(prompt, cache_salt, feature_args)
        chosen = self._choose(blocks) if rank is None else self._checked(rank)
        self._routing.begin(chosen, blocks)
        try:
            yield self.ranks[chosen]
        finally:
            self._routing.finish(chosen)

    def _choose(self, blocks: Sequence[bytes]) -> int:
        running = sum(1 << rank for rank, handle in enumerate(self.ranks) if handle.is_running)
        chosen = self._routing.choose(blocks, running)
        return 0 if chosen is None else chosen  # where none runs, the first says so

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < len(self.ranks):
            raise RequestError(
                f"data_parallel_rank must be from 0 to {len(self.ranks) - 1}, got {rank}.", param="data_parallel_rank"
            )
        return rank

    def _blocks(self, prompt: Prompt | PooledPrompt, cache_salt: str, feature_args: Mapping[str, str]) -> list[bytes]:
        """What the prompt shares with others."""
        root = self._root + make_cache_key(cache_salt, feature_args)
        contents: dict[int, bytes] = {}
        for media in prompt.media:
            block = media.start // BLOCK_TOKENS
            contents[block] = contents.get(block, b"") + media.digest
        blocks = hashed_blocks(prompt.ids.tobytes(), BLOCK_TOKENS * prompt.ids.itemsize, root, contents)
        return [root, *blocks] if self._sticky and cache_salt else blocks

    def abort(self, request_id: str) -> None:
        """Ends a request with finish_reason "abort". Unknown ids are ignored."""
        for rank in self.ranks:
            rank.abort(request_id)

    # ---- sleep --------------------------------------------------------------

    async def sleep(self, *, abort: bool) -> None:
        """All engines fall asleep but those that have ended for good; if one cannot, the others wake up again. Raises
        EngineDeadError."""
        async with self._changing:
            self.check_alive()
            ranks = [rank for rank in self.ranks if not rank.has_ended]
            error = await _first_error(rank.sleep(abort=abort) for rank in ranks)
            if error is not None:
                await _first_error(rank.wake_up() for rank in ranks)
                raise error

    async def wake_up(self) -> None:
        """Returns when all engines are ready. Raises the error of the first that is not; the others serve."""
        async with self._changing:
            error = await _first_error(rank.wake_up() for rank in self.ranks)
            if error is not None:
                raise error

    # ---- health -------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What each engine runs on, with the requests that all of them together run at once."""
        info = self.ranks[0].info
        return msgspec.structs.replace(info, max_num_seqs=sum(rank.info.max_num_seqs for rank in self.ranks))

    @property
    def health(self) -> Health:
        """Of the group, which answers as long as one engine does."""
        each = [rank.health for rank in self.ranks]
        alive = [health for health in each if health.alive]
        return Health(
            alive=bool(alive),
            stalled=bool(alive) and all(health.stalled for health in alive),
            seconds_since_heartbeat=min(health.seconds_since_heartbeat for health in alive or each),
            error=None if alive else each[0].error,
            restarting=not alive and any(health.restarting for health in each),
            asleep=all(health.asleep or rank.has_ended for health, rank in zip(each, self.ranks, strict=True))
            and any(health.asleep for health in each),
        )

    @property
    def is_running(self) -> bool:
        return any(rank.is_running for rank in self.ranks)

    @property
    def has_ended(self) -> bool:
        return all(rank.has_ended for rank in self.ranks)

    def check_alive(self) -> None:
        """Raises EngineAsleepError, or EngineDeadError if no engine is running."""
        if self.health.asleep:
            raise EngineAsleepError(ASLEEP)
        if not self.is_running:
            raise EngineDeadError(self.ranks[0].health.error or "No engine is running.")

    async def wait_ended(self) -> None:
        """Returns when the last engine has ended and will not be restarted. Until then the others serve."""
        waiting = {asyncio.create_task(rank.wait_ended(), name=str(number)) for number, rank in enumerate(self.ranks)}
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done if waiting and not self._ending else ():
                    log.error("engine %s has ended for good; %d others serve on", task.get_name(), len(waiting))
        finally:
            for task in waiting:
                task.cancel()

    async def shutdown(self) -> None:
        """Ends all engines; requests that are still running end with EngineDeadError. May be called again."""
        self._ending = True
        await asyncio.gather(*(rank.shutdown() for rank in self.ranks))


async def _first_error(works: Iterable[Coroutine[Any, Any, None]]) -> BaseException | None:
    """Waits for all of them."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    return next((outcome for outcome in outcomes if outcome is not None), None)
