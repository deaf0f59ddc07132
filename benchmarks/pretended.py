"""A CUDA runtime and an NCCL that do nothing (pretended_cuda/), put in the place of the real ones.

For a Python whose torch is built with CUDA, on a machine that need have no GPU; built with cc when a script starts.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "pretended_cuda" / name for name in ("runtime.c", "nccl.c")]
# What the headers take from a package that torch does not bring.
ANNOTATIONS = "\n".join(
    [
        "#define __builtin_align__(n) __attribute__((aligned(n)))",
        "#define __align__(n) __attribute__((aligned(n)))",
        *(f"#define {name}" for name in ("__host__", "__device__", "__device_builtin__", "CUDARTAPI")),
        *(f"#define __device_builtin_{kind}_type__" for kind in ("texture", "surface")),
    ]
)


def is_in_place() -> bool:
    """Whether this process runs on them."""
    return "libpretended" in os.environ.get("LD_PRELOAD", "")


def anew() -> int:
    """Start this script again with the runtime in place; its exit code, or 3 where something is lacking."""
    reason = lacking()
    if reason:
        print(f"error: {reason}", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        (Path(folder) / "libcuda.so.1").symlink_to(library)
        preloaded = {
            "LD_PRELOAD": str(library),
            "LD_LIBRARY_PATH": folder,
            "TRITON_LIBCUDA_PATH": folder,
            "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # processes that compile would be waited for at the end, for minutes
            "PYTORCH_ALLOC_CONF": "expandable_segments:False",  # the driver below has no virtual addresses
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        return subprocess.run([sys.executable, *sys.argv], env={**os.environ, **preloaded}).returncode


def lacking() -> str:
    """What this machine would need, or nothing."""
    if headers() is None:
        return f"{sys.executable} has no torch with CUDA 13: in a virtual environment, pip install torch==2.11.0"
    if shutil.which("cc") is None:
        return "no C compiler is on the PATH as cc: install one"
    return ""


def headers() -> Path | None:
    """Where a torch with CUDA keeps those of the runtime."""
    found = importlib.util.find_spec("nvidia")
    folders = (Path(p) for p in (found.submodule_search_locations or ()) if found) if found else ()
    return next((h.parent for f in folders for h in f.glob("cu13/include/driver_types.h")), None)


def build(folder: Path) -> Path:
    """The runtime as a library in this folder."""
    (folder / "crt").mkdir()
    for name in ("host_defines.h", "host_config.h"):
        (folder / "crt" / name).write_text(ANNOTATIONS)
    library = folder / "libpretended.so"
    command = ["cc", "-w", "-O2", "-fPIC", "-shared", f"-I{folder}", f"-I{headers()}", *map(str, SOURCES)]
    subprocess.run([*command, "-o", str(library), "-ldl", "-lpthread"], check=True)
    return library
