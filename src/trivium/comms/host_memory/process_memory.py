"""Read the memory of another process (Linux): the system call, the permission, and a test whether it works here."""

import ctypes
import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

_MAX_READ_BYTES = 1 << 30  # bytes of one call; the kernel stops at two to the 31st
_PR_SET_PTRACER = 0x59616D61  # prctl(2)
_ATTEMPT_SECONDS = 10.0
_C_LIBRARY = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid: int, source: int, target: int, size: int) -> None:
    """Copy bytes from an address of another process to an address of this one. Raises OSError with the reason."""
    while size:
        part = min(size, _MAX_READ_BYTES)
        here, there = _Vector(target, part), _Vector(source, part)
        done = _C_LIBRARY.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if done <= 0:
            raise OSError(ctypes.get_errno(), f"process_vm_readv: {os.strerror(ctypes.get_errno())}")
        target, source, size = target + done, source + done, size - done


def let_siblings_read() -> None:
    """Allow the other descendants of the parent process to read this one's memory, if the kernel allows it only to
    ancestors (Yama)."""
    _C_LIBRARY.prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)


def why_siblings_cannot_read() -> str:
    """Return why one child process cannot read another's memory, found by a test with two; empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no process_vm_readv"
    context, here = get_context("fork"), ctypes.create_string_buffer(b"mine", 5)
    (ours, lenders), (mine, readers) = context.Pipe(), context.Pipe()
    lender = context.Process(target=_lend, args=(here, lenders), daemon=True)
    lender.start()
    try:
        if not ours.poll(_ATTEMPT_SECONDS):
            return "a process that was to lend memory did not start"
        reader = context.Process(target=_read, args=(lender.pid, here, readers), daemon=True)
        reader.start()
        if not mine.poll(_ATTEMPT_SECONDS):
            return "a process that was to read memory did not answer"
        said = mine.recv_bytes().decode()
        reader.join()
        return said
    finally:
        lender.kill()
        lender.join()


def _lend(here: "ctypes.Array[ctypes.c_char]", pipe: Connection) -> None:
    here.value = b"lent"
    let_siblings_read()
    pipe.send_bytes(b"ready")
    pipe.poll(None)  # until it is killed


def _read(pid: int, here: "ctypes.Array[ctypes.c_char]", pipe: Connection) -> None:
    """Test a read from the parent, whose copy lies at the same address as this one's after the fork."""
    try:
        read_memory(pid, ctypes.addressof(here), ctypes.addressof(here), len(here))
    except OSError as error:
        pipe.send_bytes(str(error).encode())
        return
    why = "" if here.value == b"lent" else f"it read {here.value!r} instead of what was lent"
    pipe.send_bytes(why.encode())
