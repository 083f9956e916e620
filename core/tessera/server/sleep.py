"""Sleep, by vLLM's routes: the engine's processes end, so that other programs can have its devices, and begin again at
/wake_up. The server itself runs on."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.http import json_response
from tessera.server.keys import check_admin
from tessera.server.openapi import JsonRoute

LEVELS = ("1", "2")
"""vLLM's: whether the weights are kept in memory. Here the system does that, in its cache of files."""
MODES = ("wait", "abort")
TAGS = {"weights", "kv_cache"}


class SleepState(msgspec.Struct):
    """is_sleeping: no requests are taken; those that had begun may still be running."""

    is_sleeping: bool


def routes(context: ServerContext) -> list[JsonRoute]:
    """None without --enable-sleep-mode. With a file of keys, an admin's key may do this."""
    if not context.settings.sleep_mode:
        return []
    engine = context.engine

    def check(request: Request) -> None:
        if context.settings.key_file is not None:
            check_admin(request.scope)

    async def sleep(request: Request) -> Response:
        check(request)
        _choice(request, "level", LEVELS)
        mode = _choice(request, "mode", MODES)
        await engine.sleep(abort=mode == "abort")
        return Response()

    async def wake_up(request: Request) -> Response:
        check(request)
        tags = request.query_params.getlist("tags")
        if tags and TAGS.difference(tags):
            raise RequestError("The engine wakes up as a whole: leave out `tags`, or name all.", param="tags")
        await engine.wake_up()
        return Response()

    async def is_sleeping(request: Request) -> Response:
        check(request)
        return json_response(SleepState(engine.health.asleep))

    return [
        JsonRoute("/sleep", sleep, "Ends the engine's processes, once their requests have ended.", methods=("POST",)),
        JsonRoute("/wake_up", wake_up, "Starts the engine again.", methods=("POST",)),
        JsonRoute("/is_sleeping", is_sleeping, "Whether the engine sleeps.", answer=SleepState),
    ]


def _choice(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """A parameter of the query; the first choice is the default. Raises RequestError."""
    value = request.query_params.get(name, choices[0])
    if value not in choices:
        raise RequestError(f"{name} must be {' or '.join(choices)}.", param=name)
    return value
