"""The folder of compiled kernels in the user's cache directory, for every run and process with the same code.

Modules of kernels take `njit` from here, so that the folder is chosen before the first of them is declared. Numba
looks only at the file of a function to tell whether its compiled form is out of date, and kernels call kernels of
other files. So the folder's name contains a hash of all of them.
"""

import atexit
import fcntl
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
from numba.misc.appdirs import user_cache_dir  # $XDG_CACHE_HOME, or ~/.cache

from trivium.progress import Progress

HERE = Path(__file__).parent
READY = "ready"  # a file in the folder, made when every kernel has been compiled
POLL_SECONDS = 0.1


def keep_compiled_kernels() -> Path:
    """Choose the folder and tell numba, before the first kernel is declared; return the folder."""
    named = numba.config.CACHE_DIR  # pyrefly: ignore[missing-attribute]
    base = Path(named) if named else _users()
    name = f"kernels-{_key()}"
    folder = first_writable([base / name, HERE / "__pycache__" / name])
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="trivium-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)  # pyrefly: ignore[missing-attribute]
    return folder


def first_writable(folders: Iterable[Path]) -> Path | None:
    """Return the first folder that exists, or can be made, and takes a file."""
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    return None


@contextmanager
def compiling(folder: Path, progress: Progress) -> Iterator[bool]:
    """Let one process compile, and the others wait for it; yield whether there is anything left to compile.

    Two that wrote the same entries of numba's index at once could each take the other's code for its own.
    """
    ready = folder / READY
    if ready.exists():
        yield False
        return
    with open(folder / "lock", "w") as lock:
        while not _locks(lock.fileno()):
            progress(0, None, "waiting for another process, which is compiling the kernels")
            time.sleep(POLL_SECONDS)
        missing = not ready.exists()
        yield missing
        if missing:
            ready.touch()


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _users() -> Path:
    """Return the user's cache directory; an empty or relative XDG_CACHE_HOME counts as none, as its standard says."""
    folder = Path(user_cache_dir("trivium", appauthor=False))
    return folder if folder.is_absolute() else Path("~/.cache/trivium").expanduser()


def _key() -> str:
    """Change with the code of any kernel, with what compiles it, and with the processor that it is compiled for."""
    made = hashlib.sha256()
    for path in sorted(HERE.glob("*.py")):
        made.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    features = llvmlite.binding.get_host_cpu_features().flatten()
    cpu = f"{llvmlite.binding.get_host_cpu_name()} {features}"
    versions = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__}"
    made.update(f"{versions} {cpu}".encode())
    return made.hexdigest()[:16]


CACHE = keep_compiled_kernels()
njit = numba.njit
