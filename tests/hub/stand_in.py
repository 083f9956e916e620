"""A hub on loopback that answers as the real one does what huggingface_hub asks of it, counts what it sends, and breaks
off or stalls where a test says so."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MEMBER, STRANGER = "hf_member", "hf_stranger"
"""Tokens that the hub knows: of an account that has access to gated repositories, and of one that has not."""

_CHUNK = 1 << 18


@dataclass
class Repository:
    """revisions: commit by branch or tag; files by commit. Large files (*.safetensors) lie on another host, as with the
    real hub."""

    files: Mapping[str, Mapping[str, bytes]]
    revisions: Mapping[str, str]
    gated: bool = False
    private: bool = False


@dataclass
class StandIn:
    """requests: "METHOD path", in order. sent: bytes of each file's body. break_after, stall_after: bytes of a file
    after which its next answer ends or hangs. stalled: set by an answer that hangs. hosts: whom requests were for.
    tokens: that reached the host of large files."""

    port: int = 0
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    break_after: dict[str, int] = field(default_factory=dict)
    stall_after: dict[str, int] = field(default_factory=dict)
    stalled: threading.Event = field(default_factory=threading.Event)
    hosts: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    down: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, name: str, files: Mapping[str, bytes], **settings: bool) -> None:
        """A repository whose branch main has these files."""
        commit = hashlib.sha256(name.encode()).hexdigest()[:40]
        self.repositories[name] = Repository({commit: files}, {"main": commit}, **settings)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/models/{owner}/{name}", self._info),
                Route("/api/models/{owner}/{name}/revision/{revision:path}", self._info),
                Route("/{owner}/{name}/resolve/{revision}/{file:path}", self._file, methods=["GET", "HEAD"]),
                Route("/large/{owner}/{name}/{commit}/{file:path}", self._large),
            ]
        )

    # ---- answers

    async def _info(self, request: Request) -> Response:
        found = self._find(request, gate=False)
        if isinstance(found, Response):
            return found
        repository, commit = found
        siblings = [{"rfilename": name, "size": len(data)} for name, data in repository.files[commit].items()]
        name = _name(request)
        return JSONResponse({"id": name, "sha": commit, "private": repository.private, "siblings": siblings})

    async def _file(self, request: Request) -> Response:
        found = self._find(request, gate=True)
        if isinstance(found, Response):
            return found
        repository, commit = found
        file = request.path_params["file"]
        if file not in repository.files[commit]:
            return _refusal(404, "EntryNotFound", "Entry not found", commit)
        data = repository.files[commit][file]
        etag = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if not file.endswith(".safetensors"):
            return self._body(request, file, data, headers)
        where = f"http://localhost:{self.port}/large/{_name(request)}/{commit}/{quote(file)}"
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data)), "Location": where}
        return Response(status_code=302, headers=headers)

    async def _large(self, request: Request) -> Response:
        self._note(request)
        self.tokens.add(request.headers.get("Authorization", ""))
        repository, file = self.repositories[_name(request)], request.path_params["file"]
        return self._body(request, file, repository.files[request.path_params["commit"]][file], {})

    def _find(self, request: Request, *, gate: bool) -> tuple[Repository, str] | Response:
        self._note(request)
        if self.down:
            return Response(status_code=503)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", MEMBER, STRANGER):
            return _refusal(401, None, "Invalid credentials in Authorization header")
        repository = self.repositories.get(_name(request))
        if repository is None or (repository.private and token != MEMBER):
            return _refusal(404 if token else 401, "RepoNotFound", "Repository not found")
        wanted = request.path_params.get("revision", "main")
        commit = repository.revisions.get(wanted, wanted)
        if commit not in repository.files:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {wanted}")
        if gate and repository.gated and token != MEMBER:
            return _refusal(403 if token else 401, "GatedRepo", "Access to this model is restricted.", commit)
        return repository, commit

    def _note(self, request: Request) -> None:
        self.requests.append(f"{request.method} {request.url.path}")
        self.hosts.add(request.headers["Host"])

    def _body(self, request: Request, file: str, data: bytes, headers: Mapping[str, str]) -> Response:
        if request.method == "HEAD":
            return Response(headers={**headers, "Content-Length": str(len(data))})
        first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        part = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if first else {}
        return StreamingResponse(
            self._stream(file, data[first:]),
            status_code=206 if first else 200,
            headers={**headers, **part, "Content-Length": str(len(data) - first)},
        )

    async def _stream(self, file: str, data: bytes) -> AsyncIterator[bytes]:
        ends, hangs = self.break_after.pop(file, len(data)), self.stall_after.pop(file, len(data))
        for start in range(0, min(ends, hangs, len(data)), _CHUNK):
            piece = data[start : min(start + _CHUNK, ends, hangs)]
            self.sent[file] += len(piece)
            yield piece
        if hangs < len(data):
            self.stalled.set()
            await asyncio.sleep(60)


def _name(request: Request) -> str:
    return f"{request.path_params['owner']}/{request.path_params['name']}"


def _refusal(status: int, code: str | None, message: str, commit: str | None = None) -> Response:
    headers = {"X-Error-Message": message}
    headers |= {} if code is None else {"X-Error-Code": code}
    headers |= {} if commit is None else {"X-Repo-Commit": commit}
    return Response(status_code=status, headers=headers)


@contextmanager
def running() -> Iterator[StandIn]:
    """A stand-in that listens on a free port."""
    hub = StandIn()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        hub.port = listener.getsockname()[1]
        config = uvicorn.Config(
            hub.app(), log_config=None, lifespan="off", ws="none", http="httptools", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join(10)
