"""Metrics and events as append-only JSON lines; a resumed run drops the lines of the steps that it repeats."""

import errno
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from trivium.checkpoint.durable import write_blocks
from trivium.config import MAX_COUNT
from trivium.finite import dumps
from trivium.redact import redacted
from trivium.units import plain
from trivium.untrusted import only_regular, open_regular, parse_json

METRICS, EVENTS, TASKS = "metrics.jsonl", "events.jsonl", "tasks.jsonl"
_WRITTEN_TOGETHER = 1024  # lines
_NOT_FINITE = ("nan", "inf", "-inf")  # as events write numbers


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= MAX_COUNT)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _has_loads(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(load, dict) and _is_number(load.get("largest")) for load in value.values()
    )


# The fields that readers compute with or print, and what their values must be.
FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("step", "tokens", "samples", "sequences", "entries"), _is_count),
    **dict.fromkeys(("time", "seconds", "loss", "validation_loss", "lr", "gradient_norm"), _is_number),
    **dict.fromkeys(("tokens_per_second", "model_flops_per_second", "loss_scale", "joules"), _is_number),
    **dict.fromkeys(("event", "cause", "batch_hash"), _is_text),
    "experts": _has_loads,
}


def append(path: Path, record: dict[str, Any]) -> None:
    """Append one line. If the process dies meanwhile, `read` ignores the partial line. A full disk costs the line, with
    a warning, but never the run."""
    try:
        with open(path, "a+b", buffering=0, opener=_open_regular) as file:
            before = os.fstat(file.fileno()).st_size
            line = dumps(redacted(record)).encode() + b"\n"
            if before and os.pread(file.fileno(), 1, before - 1) != b"\n":
                line = b"\n" + line
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                file.truncate(before)  # a partial line would spoil the next one
                raise
    except OSError as error:
        warn(f"{path}: a line was not written: {error.strerror}")


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file only: another user's run directory may contain a link to any file, and a FIFO blocks."""
    return only_regular(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), path)


def append_event(out: Path, event: dict[str, Any]) -> None:
    """Append an event, with the time, to the events of the run in `out`."""
    append(out / EVENTS, {**event, "time": time.time()})


def warn(text: str) -> None:
    """Print a warning to standard error, if that can still be written."""
    with suppress(OSError):
        print(plain(f"warning: {text}"), file=sys.stderr, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records of a file; other lines are ignored, as nothing that is trained depends on them."""
    return list(records(path))


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what `read` returns, one record at a time: the file of a long training may not fit in memory."""
    if path.is_file():
        with open_regular(path) as file:
            yield from _records(file)


def newest_steps(path: Path) -> list[dict[str, Any]]:
    """Return the records of the last few steps with a loss, read from the end of the file; empty if there is none."""
    if not path.is_file():
        return []
    with open_regular(path) as file:
        size, back = os.fstat(file.fileno()).st_size, 4096
        while True:  # a line with the loads of many experts is longer
            file.seek(max(0, size - back))
            newest = [r for r in _records(file) if isinstance(r.get("loss"), float) and "step" in r]
            if newest or back >= size:
                return newest
            back *= 4


def last_step(path: Path) -> int:
    """Return the last step with a loss, or 0."""
    newest = newest_steps(path)
    return int(newest[-1]["step"]) if newest else 0


def forget_after(path: Path, step: int) -> None:
    """Remove the lines of later steps, which a resumed run will write again."""
    if not path.is_file():
        return
    kept = (dumps(r) + "\n" for r in records(path) if "step" in r and r["step"] <= step)
    partial = path.with_suffix(".partial")
    blocks = iter(lambda: "".join(islice(kept, _WRITTEN_TOGETHER)).encode(), b"")
    write_blocks(partial, blocks)
    partial.replace(path)


def is_evaluated(path: Path, step: int) -> bool:
    """Whether the file has an evaluation of the model after this step, besides the metrics of the step itself."""
    return any(r.get("step") == step and "batch_hash" not in r for r in records(path))


def record_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line, without its fields that are null or not finite. Returns None if it is no record: the partial line
    of a process that died, or one with a field of another type."""
    try:
        parsed = parse_json(line)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    record = {k: v for k, v in parsed.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))}
    words = _NOT_FINITE if "event" in record else ()
    sound = all(
        is_valid(record[name]) or (is_valid is _is_number and record[name] in words)
        for name, is_valid in FIELDS.items()
        if name in record
    )
    return record if sound else None


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return (record for line in lines if (record := record_of(line)) is not None)
