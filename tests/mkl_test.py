"""MKL runs its fast kernels on AMD CPUs if our definition answers the vendor check."""

import signal
import subprocess
import sys
from ctypes import CDLL
from pathlib import Path

import pytest

from trivium import mkl

X86_LINUX = sys.platform == "linux" and mkl.os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not X86_LINUX, reason="MKL chooses its kernels by maker on x86 only")

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq\n"
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); import torch; "
MULTIPLY = "x = torch.ones(64, 64); x @ x"


def test_shared_object_exports_a_function_that_returns_one(tmp_path: Path) -> None:
    library = tmp_path / "answers.so"
    library.write_bytes(mkl.shared_object(mkl.SYMBOL, mkl.RETURN_ONE))
    assert CDLL(str(library))[mkl.SYMBOL]() == 1


def test_torch_uses_the_preloaded_definition(tmp_path: Path) -> None:
    library = tmp_path / "traps.so"
    library.write_bytes(mkl.shared_object(mkl.SYMBOL, bytes.fromhex("0f0b")))  # an invalid instruction
    command = [sys.executable, "-c", LOAD + "assert torch.backends.mkl.is_available(); " + MULTIPLY, library]
    assert subprocess.run(command).returncode == -signal.SIGILL


@pytest.mark.parametrize(
    ("processor", "first", "fast"),
    [
        (AMD, "", True),
        (AMD, "import torch; ", False),
        (AMD.replace("avx512f", ""), "", False),
        (AMD.replace("AuthenticAMD", "GenuineIntel"), "", False),
    ],
)
def test_only_amd_with_avx512_before_torch(processor: str, first: str, fast: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(processor)
    program = (
        "import sys; from pathlib import Path; from trivium import mkl; "
        f"mkl.CPU_INFO = Path(sys.argv[1]); {first}mkl.prefer_fast_kernels(); print(mkl.runs_fast_kernels())"
    )
    command = [sys.executable, "-c", program, tmp_path / "cpuinfo"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{fast}\n"


def test_public_names_are_imported_after_the_choice() -> None:
    program = "import trivium.mkl as m; m.prefer_fast_kernels = lambda: print('asked'); import trivium; trivium.Mesh"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "asked\n"
