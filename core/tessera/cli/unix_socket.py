"""A Unix socket to listen on: only this user may connect, and it is gone when the server is."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import PortError

_CONNECT_SECONDS = 2.0


@contextlib.contextmanager
def unix_listener(path: str, backlog: int) -> Iterator[socket.socket]:
    """A listening socket; what a dead server left at the path is replaced. Raises PortError."""
    place = Path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            _make_room(place)
            listener.bind(path)
        except OSError as error:
            raise PortError(f"--uds '{path}' cannot be made: {error.strerror or error}.") from error
        own = place.stat()
        try:
            # Nobody can connect before it listens.
            place.chmod(0o600)
            listener.listen(backlog)
            yield listener
        finally:
            _remove(place, own)


def _make_room(place: Path) -> None:
    try:
        kind = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise PortError(f"--uds '{place}' is there already and no socket; choose another path.")
    if _is_listened_on(place):
        raise PortError(f"A server listens on --uds '{place}'; stop it or choose another path.")
    place.unlink(missing_ok=True)


def _is_listened_on(place: Path) -> bool:
    """Whoever refuses is dead; one that is too busy to accept is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(place))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True
    return True


def _remove(place: Path, own: os.stat_result) -> None:
    """Only what this server made: another may have taken its place."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(place.lstat(), own):
            place.unlink()
