"""Facts about this machine, and whether they suffice. Facts are gathered separately from their evaluation."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from trivium.errors import MachineError
from trivium.units import format_bytes

PYTHON = (3, 11)
TORCH = (2, 11)
MIN_CORES = 2
MEMORY_BYTES = 4 << 30  # all processes of the demo together
MIN_DISK_BYTES = 300 << 20
MIN_SHM_BYTES = 64 << 20
MIN_PORTS = 8
MIN_OPEN_FILES = 1024
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # drivers of NVIDIA, of AMD, and of WSL
# A process of its own asks: here no rank could be forked any more that uses what was asked about.
ASKED_OF_TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    found = torch.cuda.get_device_properties(number)
    print(found.total_memory, found.name)
"""
TORCH_TIMEOUT_SECONDS = 60.0  # seconds

Verdict = Literal["OK", "WARN", "FAIL"]


class Check(NamedTuple):
    """One thing looked at: the verdict, what was found, and how to fix it."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


class Gpus(NamedTuple):
    """driver: its device file, or empty. seen: by torch, the name and bytes of each."""

    driver: str
    seen: tuple[tuple[str, int], ...] = ()


class Facts(NamedTuple):
    """Facts about this machine."""

    python: tuple[int, int, int]
    torch: str  # version; empty when it is not installed
    cores: int
    memory_bytes: int  # available now
    disk_bytes: int  # free where the output goes
    shm_bytes: int | None  # None where the platform has no /dev/shm
    ports: int  # number of MIN_PORTS that could be opened on the loopback
    files: int | None  # number of files that a process may open; None: no limit
    out: Path
    writable: str  # empty, or why not
    messages: str  # empty, or why ranks cannot read each other's memory
    gpus: Gpus


def gather(out: Path) -> Facts:
    """Look at this machine; nothing is left behind in `out`."""
    at = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    shm = Path("/dev/shm")
    return Facts(
        python=sys.version_info[:3],
        torch=version_of("torch"),
        cores=cores(),
        memory_bytes=memory_bytes(),
        disk_bytes=shutil.disk_usage(at).free,
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        ports=_free_ports(),
        files=_file_limit(),
        out=out,
        writable=_why_not_writable(at),
        messages=_why_not_by_memory(),
        gpus=_gpus(),
    )


def judge(facts: Facts) -> Iterator[Check]:
    """Yield a check of each fact against the demo's requirements."""
    shown = ".".join(map(str, facts.python))
    yield _at_least(
        "python", facts.python[:2] >= PYTHON, shown, "FAIL", "install Python 3.11 or newer and run `make setup`"
    )
    yield _torch(facts.torch)
    yield _judged_gpus(facts.gpus, facts.torch)
    yield _at_least("cores", facts.cores >= MIN_CORES, str(facts.cores), "WARN", "it works, about twice as long")
    yield _at_least(
        "memory",
        facts.memory_bytes >= MEMORY_BYTES,
        f"{format_bytes(facts.memory_bytes)} available",
        "FAIL" if facts.memory_bytes < MEMORY_BYTES // 4 else "WARN",
        f"the demo's 8 processes take up to {format_bytes(MEMORY_BYTES)}; close programs, or use --ranks 1",
    )
    yield _at_least(
        "disk",
        facts.disk_bytes >= MIN_DISK_BYTES,
        f"{format_bytes(facts.disk_bytes)} free at {facts.out}",
        "FAIL",
        f"the demo writes up to {format_bytes(MIN_DISK_BYTES)}; free space or give another --out",
    )
    yield _at_least(
        "output",
        not facts.writable,
        facts.writable or f"{facts.out} can be written",
        "FAIL",
        "give a directory you may write with --out",
    )
    shm = "none on this platform" if facts.shm_bytes is None else f"{format_bytes(facts.shm_bytes)} free"
    yield _at_least(
        "/dev/shm",
        facts.shm_bytes is None or facts.shm_bytes >= MIN_SHM_BYTES,
        shm,
        "WARN",
        "in a container, start it with --shm-size=256m",
    )
    yield _at_least(
        "ports",
        facts.ports == MIN_PORTS,
        f"{facts.ports} of {MIN_PORTS} loopback ports could be opened",
        "FAIL" if facts.ports == 0 else "WARN",
        "gloo connects the ranks over 127.0.0.1; allow it, or use --ranks 1",
    )
    yield _messages(facts.messages)
    yield _at_least(
        "files",
        facts.files is None or facts.files >= MIN_OPEN_FILES,
        "no limit" if facts.files is None else f"{facts.files} open files per process",
        "WARN",
        f"raise it with `ulimit -n {4 * MIN_OPEN_FILES}`",
    )


def check_compiler(*, wanted: bool) -> None:
    """MachineError where blocks are to be compiled and torch would find no compiler for C++."""
    name = os.environ.get("CXX") or "g++"
    if wanted and shutil.which(name) is None:
        raise MachineError(
            f"plan.compiled is true, and torch.compile needs a C++ compiler: {name} (CXX, or g++) is not on the PATH; "
            f"install one, or set plan.compiled=false, which computes the same and needs none"
        )


def cores() -> int:
    """Cores this process may use: those it may run on, or the share of them that a container allows if that is less."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, cores_allowed())


def memory_bytes() -> int:
    """Memory available now: what the system reports, or what a container leaves if that is less."""
    return min(_system_memory(), memory_left())


def _torch(version: str) -> Check:
    remedy = f"run `make setup`, which installs torch; at least {'.'.join(map(str, TORCH))} is needed"
    if not version:
        return Check("torch", "FAIL", "not installed", remedy)
    numbers = tuple(int(n) for n in version.split("+")[0].split(".")[:2] if n.isdigit())
    return _at_least("torch", numbers >= TORCH, version, "FAIL", remedy)


def _judged_gpus(gpus: Gpus, torch: str) -> Check:
    if not gpus.driver:
        return Check("GPUs", "OK", "none; ranks compute on cores")
    alike = {f"{name}, {format_bytes(size)} each" for name, size in gpus.seen}
    return _at_least(
        "GPUs",
        bool(gpus.seen),
        f"{len(gpus.seen)} x {' and '.join(sorted(alike))}"
        if gpus.seen
        else f"{gpus.driver} is there, and torch {torch} sees none",
        "WARN",
        "ranks compute on cores; install a torch that the driver supports (nvidia-smi names its CUDA; versions ending "
        "in +cpu have none), or fix CUDA_VISIBLE_DEVICES",
    )


def _why_not_by_memory() -> str:
    """Return what keeps processes of this host from reading each other's memory, or "". Imports no torch."""
    if find_spec("trivium.comms.host_memory") is None:
        return "trivium has no comms/host_memory"
    why: str = import_module("trivium.comms.host_memory.process_memory").why_siblings_cannot_read()
    return why


def _messages(why_not: str) -> Check:
    remedy = "it works, and is slower; in a container, allow it with --cap-add=SYS_PTRACE"
    found = f"over loopback: {why_not}" if why_not else "ranks can read them from each other's memory"
    return _at_least("messages", not why_not, found, "WARN", remedy)


def _at_least(name: str, good: bool, found: str, otherwise: Verdict, remedy: str) -> Check:
    return Check(name, "OK", found) if good else Check(name, otherwise, found, remedy)


def version_of(package: str) -> str:
    """Return the version of an installed package, or nothing if there is none of this name."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _system_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _free_ports() -> int:
    held: list[socket.socket] = []
    try:
        for _ in range(MIN_PORTS):
            held.append(socket.create_server(("127.0.0.1", 0)))
    except OSError:
        pass
    for each in held:
        each.close()
    return len(held)


def _gpus() -> Gpus:
    driver = next((d for d in DRIVERS if Path(d).exists()), "")
    if not driver:
        return Gpus("")
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASKED_OF_TORCH], capture_output=True, text=True, timeout=TORCH_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return Gpus(driver)
    each = (line.split(" ", 1) for line in asked.stdout.splitlines() if asked.returncode == 0)
    return Gpus(driver, tuple((name, int(size)) for size, name in each))


def _file_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _why_not_writable(at: Path) -> str:
    if not at.is_dir():
        return f"{at} is not a directory"
    try:
        with tempfile.TemporaryFile(dir=at):
            return ""
    except OSError as error:
        return f"{at} cannot be written: {error.strerror}"


UNLIMITED = 1 << 60  # bytes, or cores: beyond any real machine
GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def memory_left(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Bytes that the control groups which hold this process still allow; beyond any real machine where none does."""
    return min(map(_memory_left_in, _around(groups, own, "memory")))


def cores_allowed(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Whole cores that they allow, at least one."""
    return max(1, min(map(_cores_of, _around(groups, own, "cpu"))))


def _around(groups: Path, own: Path, controller: str) -> Iterator[Path]:
    """The group that holds this process, and those around it, in the one tree of version 2 and the controller's own of
    version 1. A group that is named as the host names it is not there inside a container, and its root is."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    named = {kind: words[2] for words in lines if len(words) == 3 for kind in words[1].split(",")}
    for root, kind in ((groups, ""), (groups / controller, controller)):
        mine = root / named.get(kind, "").lstrip("/")
        yield from (group for group in (mine, *mine.parents) if group.is_relative_to(root))


def _memory_left_in(group: Path) -> int:
    """Return the bytes that one control group may still allocate. Its cache of files that nobody reads counts as used
    there but is available at once (Kubernetes' working set excludes it too): an installation alone may fill a container
    with it."""
    for limited, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read(group / limited)
        if limit.isdecimal() and int(limit) < UNLIMITED:  # version 1 writes its largest number where there is none
            lines = (line.partition(" ") for line in _read(group / "memory.stat").splitlines())
            kept = next((_number(size) for name, _, size in lines if name == idle), 0)
            return max(0, int(limit) - max(0, _number(_read(group / used)) - kept))
    return UNLIMITED


def _cores_of(group: Path) -> int:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not period:
        quota, period = (_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) // _number(period) if quota.isdecimal() and _number(period) else UNLIMITED


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    """The text of a small file; nothing where there is none, or it may not be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
