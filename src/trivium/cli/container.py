"""What control groups, of version 1 or 2, leave this process of its machine: as containers and Slurm's jobs have it."""

from collections.abc import Iterator
from pathlib import Path

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
    """Of one group. What it keeps of files that nobody reads counts as used there and can be had at once (Kubernetes'
    working set leaves it out, too): an installation alone may fill a container with such."""
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
