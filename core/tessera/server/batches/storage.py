"""The folder in which files lie, within a limit on the bytes of all together."""

from __future__ import annotations

import asyncio
import fcntl
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from tessera.errors import ConfigError, RequestError, TooLargeError
from tessera.server.batches.objects import BatchObjects
from tessera.server.batches.protocol import FileObject
from tessera.server.disk import DiskFullError, writing

T = TypeVar("T")
MAX_FILES = 10_000
_UPLOADED = ".part"
_FILE_NAME = re.compile(rf"file_[0-9a-f]{{48}}({re.escape(_UPLOADED)})?")
"""The names that files here have; any other file is somebody else's."""
_OBJECTS = "objects.sqlite"
_LOCK = "lock"
_BUFFER_BYTES = 2**20
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0
"""Between two tries to write to a disk that is full."""


class Storage:
    """Files, each named by its id, and what is known of files and batches. folder: of one server alone; "" is a
    temporary one, which is made when it is needed and removed in the end."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        """Raises ConfigError if the folder cannot be used."""
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._num_refused = 0
        """Writes that wait for a disk that is full."""
        self._temporary: str | None = None
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        if not folder:
            self.objects = BatchObjects("")
            return
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self._folder / _LOCK).open("wb")
        except OSError as error:
            raise ConfigError(f"--batch-store '{folder}' cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(f"--batch-store '{folder}' is used by another server; name another folder.") from error
        self.objects = BatchObjects(str(self._folder / _OBJECTS))
        self._clear(self._folder)

    def _clear(self, folder: Path) -> None:
        """Removes what an earlier server left unfinished, and counts what is kept."""
        known = self.objects.ids()
        for path in folder.iterdir():
            if path.name in known:
                self.used_bytes += path.stat().st_size
            elif _FILE_NAME.fullmatch(path.name):
                path.unlink()

    @property
    def full(self) -> bool:
        return self.used_bytes >= self.most_bytes or self._num_refused > 0

    async def until_written(self, write: Callable[[], Awaitable[T]]) -> T:
        """What `write` returns; it is called again and again while the disk is full. For what nobody waits for."""
        pause, refused = _PAUSE_SECONDS, False
        try:
            while True:
                try:
                    return await write()
                except DiskFullError:
                    self._num_refused += not refused
                    refused = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._num_refused -= refused

    def path(self, key: str) -> Path:
        """Where the file with this id lies; an id of this server's own."""
        if self._folder is None:
            self._temporary = tempfile.mkdtemp(prefix="tessera-batches-")
            self._folder = Path(self._temporary)
        return self._folder / key

    @contextmanager
    def receiving(self, key: str, most_bytes: int) -> Iterator[Incoming]:
        """A file that arrives. It is kept if the block calls keep(), and gone otherwise."""
        incoming = Incoming(self, self.path(key), most_bytes)
        try:
            yield incoming
        finally:
            incoming.close()

    async def check_room(self) -> None:
        """Raises RequestError if no further file may be made."""
        if await self.objects.count("file") >= MAX_FILES:
            raise RequestError(f"There are {MAX_FILES} files, which is the most; delete some.", param="file")

    async def add(self, file: FileObject, tenant: str) -> None:
        """Lets the tenant see a file that lies here."""
        await self.objects.put("file", file.id, tenant, file.purpose, file)

    async def remove(self, key: str) -> None:
        await self.objects.delete(key)
        path = self.path(key)
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            await asyncio.to_thread(path.unlink)
            self.used_bytes -= size

    def close(self) -> None:
        self.objects.close()
        if self._lock is not None:
            self._lock.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class Incoming:
    """A file on its way into a storage."""

    def __init__(self, storage: Storage, path: Path, most_bytes: int) -> None:
        self.size = 0
        self._storage = storage
        self._path = path
        self._part = path.with_name(path.name + _UPLOADED)
        self._most_bytes = most_bytes
        self._file = self._part.open("wb", buffering=_BUFFER_BYTES)

    async def write(self, data: bytes) -> None:
        """Raises TooLargeError, DiskFullError."""
        if self.size + len(data) > self._most_bytes:
            raise TooLargeError(f"The file is larger than the limit of {self._most_bytes} bytes.", param="file")
        if self._storage.used_bytes + len(data) > self._storage.most_bytes:
            raise TooLargeError(
                f"All files together would be larger than the limit of {self._storage.most_bytes} bytes; delete some.",
                param="file",
            )
        self.size += len(data)
        self._storage.used_bytes += len(data)
        with writing("A file"):
            await asyncio.to_thread(self._file.write, data)

    async def keep(self) -> None:
        """Raises DiskFullError."""
        with writing("A file"):
            await asyncio.to_thread(self._file.close)
            self._part.replace(self._path)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before cannot be written now
            self._file.close()
        if self._part.exists():
            self._part.unlink()
            self._storage.used_bytes -= self.size
