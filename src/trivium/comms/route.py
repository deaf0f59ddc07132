"""The network interface and the address from which this host reaches another."""

import contextlib
import fcntl
import socket
import struct
from typing import NamedTuple

_SIOCGIFADDR = 0x8915  # netdevice(7)


class Route(NamedTuple):
    """interface: its name. address: this host's on it, which others can reach."""

    interface: str
    address: str


def route_to(host: str, port: int) -> Route | None:
    """The way to another host; none where it is this one, or nothing leads there."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        here = probe.getsockname()[0]
        name = next((n for _, n in socket.if_nameindex() if _address_of(n, probe) == here), None)
        if name is not None and not here.startswith("127."):
            return Route(name, here)
    return None


def _address_of(interface: str, any_socket: socket.socket) -> str:
    """The IPv4 address of a network interface, or nothing."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""
