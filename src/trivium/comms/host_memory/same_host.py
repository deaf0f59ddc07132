"""Rendezvous of ranks that share a host: both ranks of a pair test whether they can read each other's memory."""

import contextlib
import ctypes
import hashlib
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from trivium.comms.host_memory.loans import HostPeer
from trivium.comms.host_memory.process_memory import let_siblings_read, read_memory

_CARD = struct.Struct("=32sQ32s")  # host, process, name of its socket
_HELLO = struct.Struct("=QQ16s?")  # rank, where a nonce lies, the nonce, whether the other's was read
_CREDENTIALS = struct.Struct("=iII")  # process, user, group: unix(7)
_MEETING_SECONDS = 10.0


@dataclass(frozen=True)
class _Card:
    """The address of a rank, sent to all others. Without a name the rank publishes nothing."""

    host: bytes
    pid: int
    name: bytes


def meet(rank: int, wanted: Collection[int], seconds: float, *, lends: bool = True) -> dict[int, HostPeer]:
    """Connect to the ranks out of `wanted` that are on this host and whose memory may be read; return them by rank.
    Every rank of the process group calls this, and a pair of ranks is in both `wanted` or in none.

    seconds: timeout of later waits between these ranks. lends: whether this rank takes part.
    """
    listener = _listener() if lends else None
    name = listener.getsockname() if listener is not None else b""
    cards = _all_cards(_Card(_this_host(), os.getpid(), name))
    if listener is None:
        return {}
    with listener:
        near = {
            r: cards[r] for r in sorted(wanted) if r != rank and cards[r].name and cards[r].host == cards[rank].host
        }
        if not near:
            return {}
        let_siblings_read()
        meeting = _Meeting(rank, near)
        meeting.call([r for r in near if r < rank])
        meeting.answer(listener, sum(r > rank for r in near))
        return {
            peer: HostPeer(peer, near[peer].pid, connection, seconds) for peer, connection in meeting.agreed().items()
        }


class _Meeting:
    """Connections between ranks of one host: a rank calls the lower ranks and answers the higher ones. Both then try to
    read a value from each other's memory, so whatever forbids it (another user, a container, kernel settings) is
    detected."""

    def __init__(self, rank: int, near: Mapping[int, _Card]) -> None:
        self._rank, self._near = rank, near
        self._nonce = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
        self._called: dict[int, socket.socket] = {}
        self._answered: dict[int, socket.socket] = {}

    def call(self, ranks: Collection[int]) -> None:
        """Connect to ranks that listen."""
        for peer in ranks:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(_MEETING_SECONDS)
            with contextlib.suppress(OSError):
                connection.connect(self._near[peer].name)
                connection.send(self._hello(False))
                self._called[peer] = connection

    def answer(self, listener: socket.socket, number: int) -> None:
        """Answer `number` ranks, or fewer if they do not call within the time limit."""
        deadline = time.monotonic() + _MEETING_SECONDS
        while len(self._answered) < number and time.monotonic() < deadline:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
                peer = next((r for r, card in self._near.items() if _is_process(connection, card.pid)), None)
                if peer is None:
                    continue  # any user may call; only ranks of this job are answered
                connection.settimeout(_MEETING_SECONDS)
                hello = connection.recv(_HELLO.size)
                connection.send(self._hello(self._reads(peer, hello)))
                self._answered[peer] = connection
            except (OSError, struct.error):
                continue  # the caller has closed its connection

    def agreed(self) -> dict[int, socket.socket]:
        """Return the connections whose two ranks can read each other's memory."""
        found = {}
        for peer, connection in self._called.items():
            with contextlib.suppress(OSError, struct.error):
                hello = connection.recv(_HELLO.size)
                reads = _is_process(connection, self._near[peer].pid) and self._reads(peer, hello)
                connection.send(self._hello(reads))
                if reads and _HELLO.unpack(hello)[-1]:
                    found[peer] = connection
        for peer, connection in self._answered.items():
            with contextlib.suppress(OSError, struct.error):
                if _HELLO.unpack(connection.recv(_HELLO.size))[-1]:
                    found[peer] = connection
        return found

    def _hello(self, reads: bool) -> bytes:
        return _HELLO.pack(self._rank, ctypes.addressof(self._nonce), self._nonce.raw, reads)

    def _reads(self, peer: int, hello: bytes) -> bool:
        _, address, nonce, _ = _HELLO.unpack(hello)
        here = ctypes.create_string_buffer(16)
        try:
            read_memory(self._near[peer].pid, address, ctypes.addressof(here), 16)
        except OSError:
            return False
        return bool(here.raw == nonce)


def _is_process(connection: socket.socket, pid: int) -> bool:
    """Return whether the peer is this process of this user, according to the kernel."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[:2] == (pid, os.getuid())


def _listener() -> socket.socket | None:
    """Return a listening socket with a random name in the abstract namespace, or None on a system without it."""
    if not sys.platform.startswith("linux"):
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(b"\0trivium-" + secrets.token_hex(11).encode())
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        return None
    return listener


def _this_host() -> bytes:
    """Return a hash that is equal for processes in the same network, process and user namespaces of one boot."""
    found = hashlib.sha256()
    with contextlib.suppress(OSError):
        found.update(Path("/proc/sys/kernel/random/boot_id").read_bytes())
        for space in ("net", "pid", "user"):
            found.update(str(Path(f"/proc/self/ns/{space}").readlink()).encode())
    return found.digest()


def _all_cards(mine: _Card) -> list[_Card]:
    """Return the cards of all ranks."""
    own = _CARD.pack(mine.host, mine.pid, mine.name)
    every = torch.empty(dist.get_world_size(), _CARD.size, dtype=torch.uint8)
    dist.all_gather(list(every), torch.frombuffer(bytearray(own), dtype=torch.uint8))
    cards = (_Card(*_CARD.unpack(bytes(row.tolist()))) for row in every)
    # The name begins with a zero byte; the zeros at the end are padding.
    return [_Card(c.host, c.pid, c.name.rstrip(b"\0")) for c in cards]
