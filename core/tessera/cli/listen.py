"""The server's listening socket, set up before anything slow starts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from ipaddress import ip_address
from pathlib import Path

from tessera.errors import PortError

EVERY_NETWORK = ("0.0.0.0", "::")  # noqa: S104  # only recognised here; the user chooses it
_BACKLOG = 2048
_CONNECT_SECONDS = 2.0
_LISTENING = "0A"  # the state's number in the kernel's tables


def listen(host: str, port: int, uds: str | None, *, later: bool = False) -> AbstractContextManager[socket.socket]:
    """A listening socket. uds: the path of a Unix socket, instead of host and port. later: it refuses connections until
    its caller makes it listen, by open_to_clients(). Raises PortError."""
    backlog = None if later else _BACKLOG
    return bind(host, port, backlog) if uds is None else unix_listener(uds, backlog)


def open_to_clients(listener: socket.socket) -> None:
    """Makes a socket listen that was to do so later. Raises PortError."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = ("a Unix socket", 0) if listener.family == socket.AF_UNIX else listener.getsockname()[:2]
        raise PortError(_problem(error, host, port)) from error


def bind(host: str, port: int, backlog: int | None = _BACKLOG) -> socket.socket:
    """A listening socket. port: 0 picks a free one. backlog: None does not listen yet. Raises PortError that names the
    owner of a used port, or says what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise PortError(f"--host '{host}' cannot be resolved to an address of this machine.") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise PortError(_problem(error, host, port)) from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL for clients on this machine."""
    scheme = "https" if tls else "http"
    if listener.family == socket.AF_UNIX:
        return f"{scheme}://localhost"
    host, port = listener.getsockname()[:2]
    if host in EVERY_NETWORK:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def socket_path(listener: socket.socket) -> str | None:
    """The path of a Unix socket; None for any other."""
    return listener.getsockname() if listener.family == socket.AF_UNIX else None


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _problem(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = owner_of(port)
        by, stop = (f" by {owner}", "stop that or ") if owner else ("", "")
        return f"Port {port} on {host} is in use{by}; {stop}choose another with --port."
    if error.errno == errno.EACCES:
        return f"You are not allowed to listen on port {port}; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine; use 127.0.0.1, 0.0.0.0 or one that is."
    return f"Cannot listen on {host} port {port}: {error.strerror}."


def owner_of(port: int, processes: Path = Path("/proc")) -> str | None:
    """The process that listens on a port, as "python (process 123)"; None if it cannot be determined."""
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(processes / "net" / table, port)}
    for process in processes.glob("[0-9]*") if inodes else ():
        if any(link in inodes for link in _links(process / "fd")):
            return f"{_text(process / 'comm').strip() or 'a program'} (process {process.name})"
    return None


def _listening(table: Path, port: int) -> list[str]:
    rows = [line.split() for line in _text(table).splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _links(folder: Path) -> list[str]:
    """The targets of a process's file descriptors; none for another user's process, or one that has just ended."""
    try:
        return [os.readlink(entry) for entry in folder.iterdir()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


# ---- a Unix socket: only this user may connect, and it is removed with the server ----


@contextlib.contextmanager
def unix_listener(path: str, backlog: int | None) -> Iterator[socket.socket]:
    """A listening socket. backlog: None does not listen yet. Replaces a socket left behind by a dead server. Raises
    PortError."""
    place = Path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            _make_room(place)
            listener.bind(path)
        except OSError as error:
            raise PortError(f"--uds '{path}' cannot be created: {error.strerror or error}.") from error
        own = place.stat()
        try:
            # No client can connect before listen().
            place.chmod(0o600)
            if backlog is not None:
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
        raise PortError(f"--uds '{place}' already exists and is not a socket; choose another path.")
    if _is_listened_on(place):
        raise PortError(f"Another server is listening on --uds '{place}'; stop it or choose another path.")
    place.unlink(missing_ok=True)


def _is_listened_on(place: Path) -> bool:
    """Whether a server is alive: a refused connection means it is dead, a timeout that it is busy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(place))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True
    return True


def _remove(place: Path, bound: os.stat_result) -> None:
    """Removes the socket, unless another server has replaced it."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(place.lstat(), bound):
            place.unlink()
