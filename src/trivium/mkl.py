"""Make Intel's MKL, which torch uses for fp32 and fp64 products on x86, run its fast kernels on AMD CPUs.

MKL chooses kernels by the CPU's vendor. On AMD CPUs `mkl_serv_intel_cpu_true` returns 0, and MKL runs slower kernels
although the CPU supports the instructions of the fast ones. torch exports that function, so the dynamic linker binds
it to the first definition in the global scope. This module puts a definition there that returns 1, like a preloaded
library (`LD_PRELOAD`), but without a compiler: it writes a shared object of a few hundred bytes to memory and loads
it. That has to happen before torch is imported, which `cli/main.py` and `trivium/__init__.py` ensure.
"""

import ctypes
import os
import platform
import re
import struct
import sys
from contextlib import suppress
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
SYMBOL = "mkl_serv_intel_cpu_true"
# endbr64; mov eax, 1; ret
RETURN_ONE = bytes.fromhex("f30f1efa b801000000 c3")
PAGE_BYTES = 0x1000


def first_processor() -> str:
    """Return the description of the first CPU from /proc/cpuinfo, or from the platform."""
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:  # not Linux; on Windows this contains the vendor
        return platform.processor()


def shared_object(symbol: str, code: bytes) -> bytes:
    """Return an ELF shared object for x86-64 that exports one function.

    Two segments map the same bytes. The executable one is for the code. The writable one, at PAGE_BYTES, is for the
    dynamic section, into which the linkers of older glibc versions write. PT_GNU_STACK is needed because the stack
    would otherwise have to be executable, which newer versions reject.
    """
    names = b"\0" + symbol.encode() + b"\0"
    headers_end = 64 + 4 * 56
    code_at = headers_end
    symbols_at = (code_at + len(code) + 7) // 8 * 8
    hash_at = symbols_at + 2 * 24
    names_at = hash_at + 5 * 4
    dynamic_at = (names_at + len(names) + 7) // 8 * 8
    size = dynamic_at + 6 * 16
    function = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, code_at, len(code))  # STB_GLOBAL, STT_FUNC
    one_bucket = struct.pack("<5I", 1, 2, 1, 0, 0)
    dynamic = struct.pack(
        "<12Q",
        *(4, hash_at),  # DT_HASH
        *(5, names_at),  # DT_STRTAB
        *(6, symbols_at),  # DT_SYMTAB
        *(10, len(names)),  # DT_STRSZ
        *(11, 24),  # DT_SYMENT
        *(0, 0),
    )

    def segment(kind: int, flags: int, offset: int, address: int, length: int, alignment: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, length, length, alignment)

    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = (
        segment(1, 5, 0, 0, size, PAGE_BYTES)  # PT_LOAD, read and execute
        + segment(1, 6, 0, PAGE_BYTES, size, PAGE_BYTES)  # PT_LOAD, read and write
        + segment(2, 6, dynamic_at, PAGE_BYTES + dynamic_at, len(dynamic), 8)  # PT_DYNAMIC
        + segment(0x6474E551, 6, 0, 0, 0, 16)  # PT_GNU_STACK
    )
    text = header + segments + code
    text = text.ljust(symbols_at, b"\0") + bytes(24) + function + one_bucket + names
    return text.ljust(dynamic_at, b"\0") + dynamic


def prefer_fast_kernels() -> None:
    """Make MKL run its fast kernels if this is an AMD CPU with AVX-512 and torch is not imported yet.

    On AMD CPUs without AVX-512, MKL's own choice is already as fast as the core allows. The function does nothing on
    systems that do not map executable memory files.
    """
    on_linux = sys.platform == "linux" and os.uname().machine == "x86_64"
    if not on_linux or "torch" in sys.modules or not is_amd_with_avx512() or runs_fast_kernels():
        return
    file = os.memfd_create(SYMBOL)
    try:
        os.write(file, shared_object(SYMBOL, RETURN_ONE))
        with suppress(OSError):
            ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
    finally:
        os.close(file)


def runs_fast_kernels() -> bool:
    """Whether the global scope has a definition that returns 1, by `prefer_fast_kernels` or preloaded by the user."""
    found = getattr(ctypes.CDLL(None), SYMBOL, None) if sys.platform == "linux" else None
    return found is not None and found() == 1


def is_amd_with_avx512() -> bool:
    """Whether this is a CPU on which MKL's own choice of kernels is slower than necessary."""
    text = first_processor()
    return "AuthenticAMD" in text and re.search(r"^flags\s*:.*\bavx512f\b", text, re.MULTILINE) is not None
