"""The address the server listens on, bound before anything slow begins, so that a taken one is known at once."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import AbstractContextManager
from ipaddress import ip_address
from pathlib import Path

from tessera.cli.unix_socket import unix_listener
from tessera.errors import ConfigError, PortError

EVERY_NETWORK = ("0.0.0.0", "::")  # noqa: S104  # the user's choice, recognised here
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_BACKLOG = 2048
_LISTENING = "0A"  # the kernel's number of the state, in its tables


def listen(host: str | None, port: int | None, uds: str | None) -> AbstractContextManager[socket.socket]:
    """A listening socket. uds: the path of a Unix socket, in place of host and port. Raises PortError, ConfigError."""
    if uds is not None:
        return unix_listener(uds, _BACKLOG)
    return bind(host or DEFAULT_HOST, DEFAULT_PORT if port is None else port)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortError with who holds the port, or what else to do; ConfigError for no port."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must be from 0 to 65535, got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise PortError(f"--host '{host}' is no address of this machine that can be found.") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PortError(_problem(error, host, port)) from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Where a client on this machine reaches it."""
    scheme = "https" if tls else "http"
    if listener.family == socket.AF_UNIX:
        return f"{scheme}://localhost"
    host, port = listener.getsockname()[:2]
    if host in EVERY_NETWORK:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def socket_path(listener: socket.socket) -> str | None:
    """Of a Unix socket; None of any other."""
    return listener.getsockname() if listener.family == socket.AF_UNIX else None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
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
        return f"Port {port} on {host} is taken{by}; {stop}choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs rights that you do not have; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are."
    return f"{host} port {port} cannot be listened on: {error.strerror}."


def owner_of(port: int, processes: Path = Path("/proc")) -> str | None:
    """The process that listens on a port, as "python (process 123)"; None where the system does not say."""
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(processes / "net" / table, port)}
    for process in processes.glob("[0-9]*") if inodes else ():
        if any(link in inodes for link in _links(process / "fd")):
            return f"{_text(process / 'comm').strip() or 'a program'} (process {process.name})"
    return None


def _listening(table: Path, port: int) -> list[str]:
    rows = [line.split() for line in _text(table).splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _links(folder: Path) -> list[str]:
    """What a process's descriptors lead to; nothing for a process of another user, or one that has just ended."""
    try:
        return [os.readlink(entry) for entry in folder.iterdir()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
