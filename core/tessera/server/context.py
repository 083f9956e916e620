"""What the routes share: the engine, the settings, and threads for work that would block the event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tessera.errors import EngineDeadError, NotFoundError
from tessera.server.access import Counts
from tessera.server.settings import ServerSettings
from tessera.text import ChatTemplate

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine

T = TypeVar("T")


class ServerContext:
    """chat_template: the tokenizer's own unless one is given; None where there is neither."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, chat_template: ChatTemplate | None) -> None:
        tokenizer = engine.tokenizer
        if chat_template is None and tokenizer is not None:
            chat_template = ChatTemplate(tokenizer.chat_templates, tokenizer.special_tokens)
        self.engine = engine
        self.settings = settings
        self.chat_template = chat_template
        self.model_names = settings.served_model_names or (engine.config.model.served_name,)
        self.created = int(time.time())
        self.counts = Counts()
        self.numbers = itertools.count()
        """A number for each request: clients may send the same id twice."""
        self._threads = ThreadPoolExecutor(settings.template_threads, thread_name_prefix="tessera-text")

    def check_name(self, name: str) -> None:
        """Raises NotFoundError for a model that is not served."""
        if name not in self.model_names:
            raise NotFoundError(f"The model `{name[:256]}` does not exist.", param="model", code="model_not_found")

    def check_model(self, name: str) -> None:
        """Raises NotFoundError for a model that is not served, EngineDeadError where the engine is gone."""
        self.check_name(name)
        if not self.engine.health.alive:
            raise EngineDeadError("The engine is not running.")

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
