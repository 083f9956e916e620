"""The routes of batches."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from tessera.errors import NotFoundError, RequestError
from tessera.server.batches.files import file_of
from tessera.server.batches.jobs import Jobs, KeptBatch
from tessera.server.batches.protocol import ENDPOINTS, WINDOW, Batch, BatchList, BatchRequest
from tessera.server.batches.storage import Storage
from tessera.server.decode import BodyContext, RequestDecoder
from tessera.server.http import json_response, read_body
from tessera.server.openapi import JsonRoute, MethodRoutes
from tessera.server.paging import MAX_ID_CHARS, PageQuery
from tessera.server.security import tenant_of
from tessera.server.store import check_metadata, new_id

PATH = "/v1/batches"
WINDOW_SECONDS = 24 * 60 * 60
MAX_TRACEPARENT_CHARS = 256


def routes(context: BodyContext, storage: Storage, jobs: Jobs) -> list[JsonRoute]:
    one, served = f"{PATH}/{{id}}", Batches(context, storage, jobs)
    return [
        MethodRoutes(
            JsonRoute(PATH, served.every, "The batches.", answer=BatchList),
            JsonRoute(
                PATH,
                served.create,
                "Runs the requests of a file while the engine is idle.",
                methods=("POST",),
                body=BatchRequest,
                answer=Batch,
            ),
        ),
        JsonRoute(one, served.retrieve, "A batch.", answer=Batch),
        JsonRoute(f"{one}/cancel", served.cancel, "Ends a batch.", methods=("POST",), answer=Batch),
    ]


class Batches:
    """The batches of one server."""

    def __init__(self, context: BodyContext, storage: Storage, jobs: Jobs) -> None:
        self._storage = storage
        self._jobs = jobs
        self._decoder = RequestDecoder(context, BatchRequest, {"output_expires_after": ()}, {})

    async def create(self, request: Request) -> Response:
        asked = await self._decoder.decode(await read_body(request.receive))
        tenant = tenant_of(request.scope)
        if asked.endpoint not in ENDPOINTS:
            raise RequestError(f"endpoint must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
        if asked.completion_window != WINDOW:
            raise RequestError(f"completion_window must be {WINDOW}.", param="completion_window")
        check_metadata(asked.metadata)
        file = await file_of(self._storage, asked.input_file_id, tenant, "input_file_id")
        if file.purpose != "batch":
            raise RequestError("The file's purpose must be batch.", param="input_file_id")
        now = int(time.time())
        batch = Batch(
            id=new_id("batch"),
            endpoint=asked.endpoint,
            input_file_id=file.id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=asked.metadata,
        )
        results = (new_id("file"), new_id("file"))
        await self._jobs.add(KeptBatch(batch, tenant, results, traceparent=_traceparent(request)))
        return json_response(batch)

    async def every(self, request: Request) -> Response:
        asked = PageQuery.from_request(request)
        kept, more = await self._storage.objects.page("batch", tenant_of(request.scope), asked, KeptBatch)
        page = [self._jobs.current(one.batch) for one in kept]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return json_response(BatchList(page, first, last, more))

    async def retrieve(self, request: Request) -> Response:
        return json_response(self._jobs.current(await self._stored(request)))

    async def cancel(self, request: Request) -> Response:
        return json_response(await self._jobs.cancel(await self._stored(request)))

    async def _stored(self, request: Request) -> Batch:
        key = request.path_params["id"][:MAX_ID_CHARS]
        kept = await self._storage.objects.get("batch", key, tenant_of(request.scope), KeptBatch)
        if kept is None:
            raise NotFoundError("The batch does not exist, or is no longer kept.", param="id")
        return kept.batch


def _traceparent(request: Request) -> str:
    """The header, if it may be one (https://www.w3.org/TR/trace-context/#traceparent-header)."""
    given = request.headers.get("traceparent", "")
    return given if len(given) <= MAX_TRACEPARENT_CHARS and given.isascii() else ""
