"""What kind of processor this is, where that decides which of torch's libraries is the faster."""

import platform
from pathlib import Path

import torch

MKL_MAKER = "GenuineIntel"
PROCESSORS = Path("/proc/cpuinfo")


def mkl_is_at_home() -> bool:
    """Whether torch has MKL and the processor is of its maker; on others' MKL takes slower ways.

    By name, not by measuring: two runs on one machine decide alike, and so do ranks on machines of one kind.
    """
    return _AT_HOME  # found at the import: a compiled block may ask, and cannot read files


def multiplies_tiles() -> bool:
    """Whether the processor multiplies tiles of bf16 numbers itself (Intel's AMX)."""
    return _TILES


def _find() -> bool:
    return torch.backends.mkl.is_available() and MKL_MAKER in _description()


def _description() -> str:
    try:
        with PROCESSORS.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096)  # the first processor's part
    except OSError:  # not Linux; Windows names the maker here
        return platform.processor()


_AT_HOME = _find()
_TILES = torch.cpu._is_amx_tile_supported()
