"""LoRA adapters that come and go while the server runs, by vLLM's routes.

A copy of the adapter is served, so that nothing that becomes of its folder reaches a running engine, and another
version of it is another adapter to the prefix cache and to the workers' slots.
"""

from __future__ import annotations

import asyncio
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tessera.config.lora import SETTINGS, WEIGHTS, read_adapter
from tessera.config.lora_values import check_values
from tessera.engine.model_tasks import GENERATE, tasks_of
from tessera.errors import ModelError, NotFoundError, RequestError, printable
from tessera.lora import lora_args
from tessera.pooling_params import PoolingParams
from tessera.sampling_params import SamplingParams
from tessera.server.adapter_copies import AdapterCopies
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.http import read_body
from tessera.server.keys import check_admin
from tessera.server.openapi import JsonRoute
from tessera.server.served_model import ServedModel

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MAX_ADAPTERS = 1024
"""That are loaded at a time."""
MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096


class LoadAdapter(msgspec.Struct):
    """lora_path: the adapter's folder on the server's machine. load_inplace: it takes the place of one with this
    name. model: that it changes; None: the first that is served."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    model: str | None = None


class UnloadAdapter(msgspec.Struct):
    """lora_int_id, model: for clients that send them; the name alone says which one is meant."""

    lora_name: str
    lora_int_id: int | None = None
    model: str | None = None


class Adapters:
    """The adapters that were loaded over HTTP, beside those of --lora-modules. copies: of the model, those that it had
    when it was loaded before included."""

    def __init__(self, context: ServerContext, copies: AdapterCopies) -> None:
        self._context = context
        self._copies = copies
        # One at a time: each reads and copies a file.
        self._changing = asyncio.Lock()
        for name, copy in copies.by_name.items():
            context.models[name] = self._served(name, copy)

    async def load(self, request: LoadAdapter) -> None:
        """Returns when the engine has answered with it. Raises RequestError."""
        async with self._changing:
            self._check_model(request)
            self._check_name(request)
            self._copies.remove_retired()
            copy = self._copies.make_folder()
            try:
                await asyncio.to_thread(self._copy, request.lora_path, copy)
                model = self._served(request.lora_name, copy)
                await self._try(model)
                self._check_name(request)  # another model may have got it meanwhile
            except (ModelError, RequestError) as error:
                shutil.rmtree(copy, ignore_errors=True)
                raise _by_name(error, request, copy) from error
            except BaseException:
                shutil.rmtree(copy, ignore_errors=True)
                raise
            self._copies.by_name[request.lora_name] = copy
            self._context.models[request.lora_name] = model

    async def unload(self, request: UnloadAdapter) -> None:
        """Requests that are running end as they would. Raises NotFoundError, RequestError."""
        async with self._changing:
            name = request.lora_name
            if name in self._context.models and name not in self._copies.by_name:
                what = "one of --lora-modules" if self._context.models[name].parent else "the model itself"
                raise RequestError(f"'{printable(name)}' is {what} and stays.", param="lora_name")
            if name not in self._copies.by_name:
                raise NotFoundError(
                    f"There is no adapter '{printable(name)}'.", param="lora_name", code="model_not_found"
                )
            del self._copies.by_name[name]
            del self._context.models[name]
            self._copies.remove_retired()

    def _served(self, name: str, copy: Path) -> ServedModel:
        base = self._context.default_model
        model = replace(base, name=name, parent=base.name, feature_args=lora_args(str(copy)))
        # Requests that are running have the model, and keep its copy.
        weakref.finalize(model, self._copies.retire, copy).atexit = False
        return model

    def _check_model(self, request: LoadAdapter) -> None:
        """Raises NotFoundError, RequestError."""
        if self._context.model(request.model).parent:
            raise RequestError("model must be the one that the adapter changes, not another adapter.", param="model")

    def _check_name(self, request: LoadAdapter) -> None:
        name = request.lora_name
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise RequestError(
                f"lora_name must be 1 to {MAX_NAME_CHARS} characters that can be printed.", param="lora_name"
            )
        if not 0 < len(request.lora_path) <= MAX_PATH_CHARS or "\0" in request.lora_path:
            raise RequestError(f"lora_path must be 1 to {MAX_PATH_CHARS} characters.", param="lora_path")
        own = name in self._copies.by_name
        taken = name in self._context.models or self._copies.is_taken(name)
        if taken and not (request.load_inplace and own):
            hint = "; load_inplace replaces it" if own else ""
            raise RequestError(f"There is a model '{printable(name)}' already{hint}.", param="lora_name")
        if not taken and len(self._copies.by_name) >= MAX_ADAPTERS:
            raise RequestError(f"There are {MAX_ADAPTERS} adapters already; unload one of them.", param="lora_name")

    def _copy(self, path: str, copy: Path) -> None:
        """Raises ModelError for what cannot be served by any model of this dtype, RequestError."""
        engine = self._context.engine
        original = read_adapter(path, engine.config.lora.max_rank)
        try:
            for name in (SETTINGS, WEIGHTS):
                shutil.copyfile(original.folder / name, copy / name)
        except OSError as error:
            raise RequestError(f"The adapter cannot be copied ({error.strerror}).", param="lora_path") from error
        check_values(read_adapter(str(copy), engine.config.lora.max_rank), engine.info.dtype)

    async def _try(self, model: ServedModel) -> None:
        """Lets the engine answer with it: whether it fits the model is the engine's to say. Raises RequestError."""
        engine, name = model.engine, f"adapter-{next(self._context.numbers)}"
        tasks = tasks_of(engine.config.model)
        pooler = engine.config.model.pooler
        if GENERATE in tasks:
            params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
            async for _ in engine.generate([0], params, name, feature_args=model.feature_args):
                pass
        elif pooler is not None:
            await engine.encode([0], PoolingParams(pooler.tasks[0]), name, feature_args=model.feature_args)


def _by_name(error: ModelError | RequestError, request: LoadAdapter, copy: Path) -> RequestError:
    """What the client reads: the adapter's name where the error has a path."""
    message, name = error.message, printable(request.lora_name)
    for folder in (copy, Path(request.lora_path).expanduser(), Path(request.lora_path)):
        for path in (folder / WEIGHTS, folder / SETTINGS, folder):
            message = message.replace(printable(path), name)
    message = message.replace(printable(request.lora_path), name)
    return RequestError(message, param="lora_path")


def routes(context: ServerContext, copies: AdapterCopies) -> list[JsonRoute]:
    """None without --enable-lora, and without a file of keys, which may have one that may do this."""
    if not context.engine.config.lora.enable or context.settings.key_file is None:
        return []
    adapters = Adapters(context, copies)
    load_decoder = RequestDecoder(context, LoadAdapter, {}, {})
    unload_decoder = RequestDecoder(context, UnloadAdapter, {}, {})

    async def load(request: Request) -> Response:
        check_admin(request.scope)
        asked = await load_decoder.decode(await read_body(request.receive))
        await adapters.load(asked)
        return _done(asked.lora_name, "added")

    async def unload(request: Request) -> Response:
        check_admin(request.scope)
        asked = await unload_decoder.decode(await read_body(request.receive))
        await adapters.unload(asked)
        return _done(asked.lora_name, "removed")

    return [
        JsonRoute(
            LOAD,
            load,
            "Serves an adapter as a model of its own.",
            methods=("POST",),
            body=LoadAdapter,
            media_type="text/plain",
        ),
        JsonRoute(
            UNLOAD,
            unload,
            "Serves an adapter no longer.",
            methods=("POST",),
            body=UnloadAdapter,
            media_type="text/plain",
        ),
    ]


def _done(name: str, what: str) -> Response:
    """In vLLM's words, which its tools look for."""
    return Response(f"Success: LoRA adapter '{name}' {what} successfully.", media_type="text/plain")
