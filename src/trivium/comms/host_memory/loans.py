"""Tensors between two ranks of one host, without the network: one publishes an address, the other reads from it.

The address is sent over a local socket. The reader copies the tensor by process_vm_readv(2) straight from the memory of
the other process when it needs it: there is one copy, no buffer and no thread. Small tensors are sent within the
message. A published tensor must not change before the reader has returned it.
"""

import contextlib
import ctypes
import select
import socket
import struct
import time
from collections import defaultdict, deque
from typing import NamedTuple, Protocol

import torch

from trivium.comms.host_memory.process_memory import read_memory

Tensor = torch.Tensor

INLINE_BYTES = 1024  # up to this size a tensor is sent within the message
_WORDS = struct.Struct("=BBQQQQ")  # kind, group, tag, number of the loan, address, bytes
_IN_MESSAGE, _IN_MEMORY, _GIVEN_BACK = range(3)  # kinds


class Key(NamedTuple):
    """The key under which a tensor is published. Tensors with one key are read in the order in which they were
    published."""

    group: int
    tag: int


class HostPeer:
    """Another rank of this host, whose memory this process may read. Used by one thread."""

    def __init__(self, rank: int, pid: int, connection: socket.socket, seconds: float) -> None:
        """seconds: timeout of waits for the other rank. They raise RuntimeError, like torch's collectives."""
        self.rank, self._pid, self._socket, self._seconds = rank, pid, connection, seconds
        connection.setblocking(False)
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._either = select.poll()
        self._either.register(connection, select.POLLIN | select.POLLOUT)
        self._offers: defaultdict[Key, deque[Borrowed]] = defaultdict(deque)  # none of them empty
        self._lent: dict[int, Tensor] = {}  # kept alive until given back
        self._number = 0

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout in seconds of later waits for this peer."""
        self._seconds = seconds

    def lend(self, key: Key, tensor: Tensor) -> "Loan":
        """Publish a contiguous tensor for the other rank, and return at once."""
        assert tensor.is_contiguous() and tensor.device.type == "cpu", f"{key}: only plain memory can be lent"
        if tensor.nbytes <= INLINE_BYTES:
            content = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
            self._say(_WORDS.pack(_IN_MESSAGE, *key, 0, 0, 0) + content)
            return Loan(self, 0)
        self._number += 1
        self._lent[self._number] = tensor
        self._say(_WORDS.pack(_IN_MEMORY, *key, self._number, tensor.data_ptr(), tensor.nbytes))
        return Loan(self, self._number)

    def borrow(self, key: Key, size: int) -> "Borrowed":
        """Wait until the other rank publishes a tensor under this key, and return access to it. Raises RuntimeError if
        it does not have `size` bytes."""
        while key not in self._offers:
            self._hear()
        borrowed = self._offers[key].popleft()
        if not self._offers[key]:
            del self._offers[key]  # most keys are used once
        if borrowed.size != size:
            raise RuntimeError(f"rank {self.rank} sent {borrowed.size} bytes by {key}, where {size} are due")
        return borrowed

    def is_lent(self, number: int) -> bool:
        """Return whether the other rank has not yet returned this loan."""
        while number in self._lent and self._take():
            pass
        return number in self._lent

    def wait_for(self, number: int) -> None:
        """Return when the other rank has returned a loan."""
        while number in self._lent:
            self._hear()

    def read(self, source: int, target: int, size: int) -> None:
        """Copy bytes from an address of the other process to an address of this one."""
        try:
            read_memory(self._pid, source, target, size)
        except ProcessLookupError as error:
            raise RuntimeError(self._ended()) from error
        except OSError as error:
            raise RuntimeError(f"rank {self.rank} (process {self._pid}) cannot be read: {error}") from error

    def give_back(self, number: int) -> None:
        """Tell the other rank that this one has read its tensor."""
        with contextlib.suppress(RuntimeError):  # a rank that has ended does not need the message
            self._say(_WORDS.pack(_GIVEN_BACK, 0, 0, number, 0, 0))

    def _say(self, words: bytes) -> None:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                self._socket.send(words)
                return
            except BlockingIOError:
                # The other rank has unread messages and may wait for this rank to read some: read one.
                if not self._take():
                    self._wait(self._either, deadline)
            except OSError as error:
                raise RuntimeError(self._ended()) from error

    def _hear(self) -> None:
        """Wait for one message and process it."""
        if not self._take():
            self._wait(self._readable, time.monotonic() + self._seconds)
            self._take()

    def _wait(self, for_what: select.poll, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not for_what.poll(left * 1000):
            raise RuntimeError(f"rank {self.rank} did not answer within {self._seconds:g} s")

    def _take(self) -> bool:
        """Process one message. Return False if none has arrived."""
        try:
            words = self._socket.recv(_WORDS.size + INLINE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it ended before it read all our messages; its own can still be read
        if not words:
            raise RuntimeError(self._ended())
        kind, group, tag, number, address, size = _WORDS.unpack_from(words)
        if kind == _GIVEN_BACK:
            del self._lent[number]
        elif kind == _IN_MESSAGE:
            self._offers[Key(group, tag)].append(InMessage(words[_WORDS.size :]))
        else:
            self._offers[Key(group, tag)].append(InMemory(self, number, address, size))
        return True

    def _ended(self) -> str:
        return f"rank {self.rank} has closed its connection to this one: it has ended"


class Loan:
    """A tensor that another rank of this host may read."""

    def __init__(self, peer: HostPeer, number: int) -> None:
        self._peer, self._number = peer, number

    def wait(self) -> None:
        """Return when the other rank has returned the tensor, which may then change."""
        self._peer.wait_for(self._number)

    def is_completed(self) -> bool:
        """Return whether the other rank has returned the tensor, as far as is known."""
        return not self._peer.is_lent(self._number)


class Borrowed(Protocol):
    """A tensor of another rank, of `size` bytes."""

    size: int

    def read(self, out: Tensor, start: int = 0) -> None:
        """Copy bytes from `start` on into the contiguous tensor `out`, as many as fill it."""

    def give_back(self) -> None:
        """Tell the owner that no read follows."""


class InMessage:
    """A tensor that was sent within the message itself."""

    def __init__(self, content: bytes) -> None:
        self.size, self._content = len(content), content

    def read(self, out: Tensor, start: int = 0) -> None:
        part = self._content[start : start + out.nbytes]
        ctypes.memmove(out.data_ptr(), part, len(part))

    def give_back(self) -> None:
        """Do nothing: the sender does not wait."""


class InMemory:
    """A tensor in the memory of the other process."""

    def __init__(self, peer: HostPeer, number: int, address: int, size: int) -> None:
        self._peer, self._number, self._address, self.size = peer, number, address, size

    def read(self, out: Tensor, start: int = 0) -> None:
        self._peer.read(self._address + start, out.data_ptr(), out.nbytes)

    def give_back(self) -> None:
        self._peer.give_back(self._number)


class Receipt:
    """A tensor of another rank that `wait` reads into `out`."""

    def __init__(self, peer: HostPeer, key: Key, out: Tensor) -> None:
        assert out.is_contiguous(), f"{key} is read as one piece of memory"
        self._peer, self._key, self._out = peer, key, out

    def wait(self) -> None:
        """Wait until the tensor is published, and read it."""
        borrowed = self._peer.borrow(self._key, self._out.nbytes)
        borrowed.read(self._out)
        borrowed.give_back()
