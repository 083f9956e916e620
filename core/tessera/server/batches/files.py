"""The routes of files."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tessera.errors import NotFoundError, RequestError
from tessera.server.batches.protocol import PURPOSES, FileList, FileObject, FileUpload
from tessera.server.batches.storage import Incoming, Storage
from tessera.server.http import ClientGone, header, json_response
from tessera.server.multipart import FormPart, FormReader
from tessera.server.openapi import JsonRoute, MethodRoutes
from tessera.server.paging import MAX_ID_CHARS, Deleted, PageQuery
from tessera.server.security import tenant_of
from tessera.server.settings import Limits
from tessera.server.store import new_id

PATH = "/v1/files"
MAX_PAGE = 10_000
MAX_NAME_CHARS = 255
_MAX_PURPOSE_BYTES = 64
_SHOWN_CHARS = 64


def routes(storage: Storage, limits: Limits, in_use: Callable[[str], bool]) -> list[JsonRoute]:
    """in_use: whether a batch that has not ended reads the file with this id."""
    one, served = f"{PATH}/{{id}}", Files(storage, limits, in_use)
    return [
        MethodRoutes(
            JsonRoute(PATH, served.every, "The files.", answer=FileList),
            JsonRoute(
                PATH,
                served.create,
                "Uploads a file, such as one of requests for a batch.",
                methods=("POST",),
                body=FileUpload,
                body_type="multipart/form-data",
                answer=FileObject,
            ),
        ),
        MethodRoutes(
            JsonRoute(one, served.retrieve, "What is known of a file.", answer=FileObject),
            JsonRoute(one, served.delete, "Deletes a file.", methods=("DELETE",), answer=Deleted),
        ),
        JsonRoute(f"{one}/content", served.content, "The content of a file.", media_type="application/octet-stream"),
    ]


class Files:
    """The files of one server."""

    def __init__(self, storage: Storage, limits: Limits, in_use: Callable[[str], bool]) -> None:
        self._storage = storage
        self._limits = limits
        self._in_use = in_use

    async def create(self, request: Request) -> Response:
        reader = FormReader(header(request.scope, b"content-type") or b"")
        await self._storage.check_room()
        key = new_id("file")
        with self._storage.receiving(key, self._limits.file_bytes) as incoming:
            name, purpose = await _received(reader, request, incoming)
            await incoming.keep()
        made = FileObject(id=key, bytes=incoming.size, created_at=int(time.time()), filename=name, purpose=purpose)
        await self._storage.add(made, tenant_of(request.scope))
        return json_response(made)

    async def every(self, request: Request) -> Response:
        asked = PageQuery.from_request(request, default=MAX_PAGE, max_limit=MAX_PAGE)
        purpose = request.query_params.get("purpose")
        purpose = None if purpose is None else purpose[:_MAX_PURPOSE_BYTES]
        page, more = await self._storage.objects.page("file", tenant_of(request.scope), asked, FileObject, purpose)
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return json_response(FileList(page, first, last, more))

    async def retrieve(self, request: Request) -> Response:
        return json_response(await self._file(request))

    async def delete(self, request: Request) -> Response:
        key = (await self._file(request)).id
        if self._in_use(key):
            raise RequestError("A batch that has not ended reads this file; cancel it first.", param="id")
        await self._storage.remove(key)
        return json_response(Deleted(key, "file"))

    async def content(self, request: Request) -> Response:
        found = await self._file(request)
        return FileResponse(self._storage.path(found.id), media_type="application/octet-stream")

    async def _file(self, request: Request) -> FileObject:
        return await file_of(self._storage, request.path_params["id"], tenant_of(request.scope), "id")


async def file_of(storage: Storage, key: str, tenant: str, param: str) -> FileObject:
    """Raises NotFoundError."""
    found = await storage.objects.get("file", key[:MAX_ID_CHARS], tenant, FileObject)
    if found is None:
        raise NotFoundError("The file does not exist.", param=param)
    return found


# ---- the form of an upload -------------------------------------------------------------------------------------------


async def _received(reader: FormReader, request: Request, incoming: Incoming) -> tuple[str, str]:
    """Writes the file of the form; returns its name and purpose. Raises RequestError, TooLargeError."""
    seen: set[str] = set()
    name, purpose, field = "", b"", ""
    async for data in _body(request):
        for found in reader.feed(data):
            if isinstance(found, FormPart):
                field = _checked(found, seen)
                seen.add(field)
                name = found.filename if field == "file" and found.filename is not None else name
            elif field == "file":
                await incoming.write(found)
            else:
                purpose += found
                _check_purpose_size(purpose)
    reader.end()
    for field in ("purpose", "file"):
        if field not in seen:
            raise RequestError(f"{field} is missing.", param=field)
    return _base_of(name), _purpose_of(purpose.decode("utf-8", "replace"))


async def _body(request: Request) -> AsyncIterator[bytes]:
    """Its pieces as they arrive. Raises ClientGone."""
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _checked(part: FormPart, seen: set[str]) -> str:
    """The name of a part that may be there. Raises RequestError."""
    name = part.name[:_SHOWN_CHARS]
    if name not in ("purpose", "file"):
        raise RequestError(f"{name} is not supported here; remove it.", param=name.partition("[")[0] or None)
    if name in seen:
        raise RequestError(f"{name} is there twice.", param=name)
    if name == "file" and part.filename is None:
        raise RequestError("file must be a file: give it a filename.", param="file")
    return name


def _check_purpose_size(purpose: bytes) -> None:
    if len(purpose) > _MAX_PURPOSE_BYTES:
        raise RequestError(f"purpose must be at most {_MAX_PURPOSE_BYTES} bytes.", param="purpose")


def _purpose_of(text: str) -> str:
    """Raises RequestError."""
    if text == "batch_output":
        raise RequestError("Only the server makes files with the purpose batch_output; use batch.", param="purpose")
    if text not in PURPOSES:
        raise RequestError(f"The purpose must be one of {', '.join(PURPOSES)}.", param="purpose")
    return text


def _base_of(name: str) -> str:
    """The name without a path, which some clients send. Raises RequestError."""
    base = name.replace("\\", "/").rpartition("/")[2] or "file"
    if len(base) > MAX_NAME_CHARS:
        raise RequestError(f"The file's name must be at most {MAX_NAME_CHARS} characters.", param="file")
    return base
