"""The network interface and the address from which this host reaches another."""

import contextlib
import fcntl
import socket
import struct
from typing import NamedTuple

_SIOCGIFADDR = 0x8915  # netdevice(7)


class Route(NamedTuple):
    """A network interface by name, and the address of this host on it, which other hosts can reach."""

    interface: str
    address: str


def route_to(host: str, port: int) -> Route | None:
    """Return the route to another host, or None if it is this host or cannot be reached."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        here = probe.getsockname()[0]
        name = next((n for _, n in socket.if_nameindex() if _address_of(n, probe) == here), None)
        if name is not None and not here.startswith("127."):
            return Route(name, here)
    return None


def _address_of(interface: str, any_socket: socket.socket) -> str:
    """Return the IPv4 address of a network interface, or an empty text if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""
