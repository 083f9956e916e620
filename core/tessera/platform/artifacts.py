"""What a platform keeps on disk so that later starts need not make it again, such as compiled programs."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tessera.errors import PlatformError

log = logging.getLogger("tessera.artifacts")

LIMIT = 4 << 30
"""Bytes of all entries together, those of other platforms and versions included."""

_HEAD = b"tessera artifact 1\n"
_DIGEST = 32  # bytes
_ENTRY = ".artifact"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class Artifacts:
    """A cache on disk: bytes by key. root: the folder of all platforms; None keeps nothing. name: of the folder in it
    that this cache uses. Core names it after the platform, the versions of its distribution, of core and of torch, and
    the worker's devices, so an upgrade finds nothing old. limit: bytes of all entries under root; beyond it the entries
    that were used longest ago are removed.

    Several processes and threads may use it at once: an entry is written completely or not at all. An entry whose
    content has changed is not found, with one warning. The data is handed out as it was put, and never executed."""

    def __init__(self, root: Path | None, name: str = "", limit: int = LIMIT) -> None:
        self._root, self._limit = root, limit
        self._folder = None if root is None else root / name

    def get(self, key: str) -> bytes | None:
        """What was put under a key; None if there is nothing. key: any text that names all that the data depends on
        beyond the versions and devices, such as a hash of the source and its shapes."""
        if self._folder is None:
            return None
        file = _file(self._folder, key)
        try:
            kept = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s could not be read (%s), so what it holds is made again", file, error.strerror)
            return None
        data = kept[len(_HEAD) + _DIGEST :]
        if kept[: len(_HEAD) + _DIGEST] != _HEAD + _digest(key, data):
            log.warning("%s is damaged, so what it held is made again", file)
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):  # a folder that may only be read; its entries count as old
            os.utime(file)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps data under a key, instead of what was there. If it cannot be written, that is logged, and the next
        start has to make it again."""
        if self._root is None or self._folder is None:
            return
        file = _file(self._folder, key)
        part = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}{_ENTRY}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(_HEAD + _digest(key, data) + data)
            part.replace(file)
        except OSError as error:
            log.warning("%s could not be written (%s), so the next start makes it again", file, error.strerror)
            with suppress(OSError):
                part.unlink()
            return
        self._evict(self._root)

    def folder(self, name: str) -> Path:
        """A folder for a library that keeps a cache of its own; the same for the same name. It exists, and may hold
        what earlier starts left there. Core neither checks nor limits what is in it. name: letters, digits and "._-".
        If the folder cannot be made, or nothing is kept: a new one, which goes with the process. Raises PlatformError
        for any other name."""
        if _NAME.fullmatch(name) is None or name.endswith(_ENTRY):
            raise PlatformError(f"'{name}' cannot be the name of a folder; use letters, digits and ._- in it.")
        if self._folder is not None:
            place = self._folder / name
            try:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                log.warning("%s could not be made (%s), so the next start begins without it", place, error.strerror)
            else:
                return place
        temporary = tempfile.mkdtemp(prefix=f"tessera-{name}-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)

    def _evict(self, root: Path) -> None:
        entries = sorted(_entries(root))
        excess = sum(nbytes for _, nbytes, _ in entries) - self._limit
        for _, nbytes, file in entries:
            if excess <= 0:
                return
            with suppress(OSError):  # another process may have removed it
                file.unlink()
            excess -= nbytes


def _file(folder: Path, key: str) -> Path:
    return folder / f"{sha256(key.encode()).hexdigest()}{_ENTRY}"


def _digest(key: str, data: bytes) -> bytes:
    hashed = sha256(key.encode())
    hashed.update(b"\0")
    hashed.update(data)
    return hashed.digest()


def _entries(root: Path) -> Iterator[tuple[int, int, Path]]:
    """When each entry was used last, its bytes, and its file."""
    for file in root.rglob(f"*{_ENTRY}"):
        with suppress(OSError):  # another process may have removed it
            found = file.stat()
            yield found.st_mtime_ns, found.st_size, file
