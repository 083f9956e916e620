"""The folder in which files lie, within a limit on the bytes of all together."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tessera.errors import ConfigError, OverloadedError, RequestError, TooLargeError
from tessera.server.batches.objects import BatchObjects
from tessera.server.batches.protocol import FileObject

log = logging.getLogger(__name__)

MAX_FILES = 10_000
_UPLOADED = ".part"
_FILE_NAME = re.compile(rf"file_[0-9a-f]{{48}}({re.escape(_UPLOADED)})?")
"""The names that files here have; any other file is somebody else's."""
_OBJECTS = "objects.sqlite"
_LOCK = "lock"
_BUFFER_BYTES = 2**20


class Storage:
    """Files, each named by its id, and what is known of files and batches. folder: of one server alone; "" is a
    temporary one, which is made when it is needed and removed in the end."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        """Raises ConfigError if the folder cannot be used."""
        self.most_bytes = most_bytes
        self.used_bytes = 0
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
        return self.used_bytes >= self.most_bytes

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
        """Raises TooLargeError, OverloadedError."""
        if self.size + len(data) > self._most_bytes:
            raise TooLargeError(f"The file is larger than the limit of {self._most_bytes} bytes.", param="file")
        if self._storage.used_bytes + len(data) > self._storage.most_bytes:
            raise TooLargeError(
                f"All files together would be larger than the limit of {self._storage.most_bytes} bytes; delete some.",
                param="file",
            )
        self.size += len(data)
        self._storage.used_bytes += len(data)
        with _storing():
            await asyncio.to_thread(self._file.write, data)

    async def keep(self) -> None:
        """Raises OverloadedError."""
        with _storing():
            await asyncio.to_thread(self._file.close)
            self._part.replace(self._path)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before cannot be written now
            self._file.close()
        if self._part.exists():
            self._part.unlink()
            self._storage.used_bytes -= self.size


@contextmanager
def _storing() -> Iterator[None]:
    """Raises OverloadedError for a disk that is full or broken."""
    try:
        yield
    except OSError as error:
        log.error("A file cannot be stored: %s.", error.strerror)
        raise OverloadedError("The server cannot store the file now; see its log.") from error
