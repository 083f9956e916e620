"""Network interfaces of this host."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_SIOCGIFADDR = 0x8915  # netdevice(7)
_NAME_BYTES = 16
_ADDRESS = slice(20, 24)


def interface_of(address: str) -> str | None:
    """The interface that has an IPv4 address; None if there is none, or if the system does not tell."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
    except (ImportError, OSError):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            with suppress(OSError):  # one without an address
                if fcntl.ioctl(asking, _SIOCGIFADDR, request)[_ADDRESS] == wanted:
                    return name
    return None
