"""The kind of CPU, which decides which of torch's libraries is faster."""

import ctypes
import re
from pathlib import Path

import torch

from trivium.mkl import SYMBOL, first_processor, runs_fast_kernels

MKL_MAKER = "GenuineIntel"
COOPER_LAKE = "85"  # the only model of Intel that multiplies bf16 numbers by AVX-512, and has never had tiles


def is_intel() -> bool:
    """Whether torch has MKL and the processor is of its maker; on others' MKL takes slower ways.

    By name, not by measuring: two runs on one machine decide alike, and so do ranks on machines of one kind.
    """
    return _IS_INTEL  # found at the import: a compiled block may ask, and cannot read files


def mkl_multiplies_faster() -> bool:
    """Whether MKL multiplies fp32 matrices faster than oneDNN does: on Intel's processors, on others without AVX-512,
    and on AMD's with AVX-512 where it runs its fast kernels (`trivium.mkl`). Without these a Zen 4 takes 0.374 s of
    CPU time for a step at hidden 256 and 0.529 s at 512, with them 0.345 and 0.521 (least of 10, 28 November 2026).
    On a Zen 3 oneDNN multiplies by 10 % faster, what is transposed by a third more slowly, and among other work a step
    takes 0.92 to 0.96 of its time with MKL alone (least of 8, hidden 512 and 256)."""
    return _IS_INTEL or _WITHOUT_AVX512 or _FAST_KERNELS


def multiplies_tiles() -> bool:
    """Whether the processor multiplies tiles of bf16 numbers itself (Intel's AMX)."""
    return _TILES


def multiplies_bf16_slowly() -> bool:
    """Whether matrices of bf16 numbers are multiplied the sooner when they are widened to fp32 first.

    So it is where no instruction multiplies them, and on Intel's newer cores where a virtual machine hides the tiles:
    what is left there takes twice as long as fp32. One core of such a machine (Emerald Rapids), GFLOP/s of 256 x 512
    by 512 x 2048: fp32 148, bf16 81, and 30 or 13 with what processors without the instruction have (AVX-512, AVX2);
    widened 130.
    """
    return _SLOW_BF16


def _exports_choice() -> bool:
    """Whether torch's MKL asks a function that can be defined elsewhere, as `trivium.mkl` does."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return library.exists() and hasattr(ctypes.CDLL(str(library)), SYMBOL)


def _find_slow_bf16() -> bool:
    if _TILES or not torch.backends.mkl.is_available():  # without MKL it is no x86, or fp32 is slow there, too
        return False
    hides_tiles = MKL_MAKER in first_processor() and _model() != COOPER_LAKE
    return hides_tiles or not torch.cpu._is_avx512_bf16_supported()


def _model() -> str:
    found = re.search(r"^model\s*: (\d+)$", first_processor(), re.MULTILINE)
    return found[1] if found else ""


def _find() -> bool:
    return torch.backends.mkl.is_available() and MKL_MAKER in first_processor()


_IS_INTEL = _find()
_WITHOUT_AVX512 = torch.backends.mkl.is_available() and not torch.cpu._is_avx512_supported()
_FAST_KERNELS = torch.backends.mkl.is_available() and _exports_choice() and runs_fast_kernels()
_TILES = torch.cpu._is_amx_tile_supported()
_SLOW_BF16 = _find_slow_bf16()
