"""The addresses of this host, and the network interface and address from which it reaches another."""

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


def addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of this host, the loopback's last."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = {address for _, name in socket.if_nameindex() if (address := _address_of(name, probe))}
    return tuple(sorted(found, key=lambda address: (address.startswith("127."), address)))


def _address_of(interface: str, any_socket: socket.socket) -> str:
    """Return the IPv4 address of a network interface, or an empty text if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""
