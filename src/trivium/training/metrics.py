"""Metrics as append-only JSON lines, one per step; a resumed run forgets the steps it will do again."""

import errno
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from trivium.checkpoint.durable import write_blocks
from trivium.config import MOST
from trivium.finite import dumps
from trivium.redact import redacted
from trivium.units import plain
from trivium.untrusted import only_regular, open_regular, parse_json

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
TASKS = "tasks.jsonl"  # what published tasks said of the model while it trained
# Of the records of these files, what their readers compute with, or take for text.
COUNTS = ("step", "tokens", "samples", "sequences", "entries")
NUMBERS = (
    "time",
    "seconds",
    "loss",
    "validation_loss",
    "lr",
    "gradient_norm",
    "tokens_per_second",
    "model_flops_per_second",
    "loss_scale",
)
TEXTS = ("event", "cause", "batch_hash")
_WRITTEN_TOGETHER = 1024  # lines
WORDS = ("nan", "inf", "-inf")  # what an event says of a number that is not finite


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line; a line is written whole or, if the process dies, ignored by `read` and ended by the next one.

    A disk that takes no more costs the line, which is told, and not the run.
    """
    try:
        with open(path, "a+b", buffering=0, opener=_itself) as file:
            before = os.fstat(file.fileno()).st_size
            line = dumps(redacted(record)).encode() + b"\n"
            if before and os.pread(file.fileno(), 1, before - 1) != b"\n":
                line = b"\n" + line
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                file.truncate(before)  # half a line would spoil the next one
                raise
    except OSError as error:
        warn(f"{path}: a line was not written: {error.strerror}")


def _itself(path: str, flags: int) -> int:
    """Open a regular file itself: a link in a run directory of others may lead to any file, and a FIFO blocks."""
    return only_regular(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), path)


def append_event(out: Path, event: dict[str, Any]) -> None:
    """Append an event, with the time, to the events of the run in `out`."""
    append(out / EVENTS, {**event, "time": time.time()})


def warn(text: str) -> None:
    """Tell something on standard error, if that can still be written."""
    with suppress(OSError):
        print(plain(f"warning: {text}"), file=sys.stderr, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line; what is no record is passed over, as nothing that is trained depends on it."""
    return list(records(path))


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what `read` returns, one record at a time: a file of a long training may not fit in memory."""
    if path.is_file():
        with open_regular(path) as file:
            yield from _records(file)


def newest(path: Path) -> dict[str, Any]:
    """The record of the last step with a loss, read from the end of the file; empty when there is none."""
    if not path.is_file():
        return {}
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        records = list(_records(file))
    return next((r for r in reversed(records) if isinstance(r.get("loss"), float) and _has_step(r)), {})


def last_step(path: Path) -> int:
    """The last step with a loss; 0 when there is none."""
    return int(newest(path).get("step", 0))


def forget_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, which a resumed run will write again."""
    if not path.is_file():
        return
    kept = (dumps(r) + "\n" for r in records(path) if _has_step(r) and r["step"] <= step)
    partial = path.with_suffix(".partial")
    blocks = iter(lambda: "".join(islice(kept, _WRITTEN_TOGETHER)).encode(), b"")
    write_blocks(partial, blocks)  # on the disk before it has the name
    partial.replace(path)


def is_evaluated(path: Path, step: int) -> bool:
    """Whether a line has an evaluation of the model after this step, and not only the totals of the step itself."""
    return any(_has_step(r) and r["step"] == step and "batch_hash" not in r for r in records(path))


def record_of(line: bytes) -> dict[str, Any] | None:
    """What a line holds, without what is null or not finite, which is not written; None where it is no record: half of
    one, of a process that died, or one of which a field has a value of another kind."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    record = {name: value for name, value in found.items() if not _is_nothing(value)}
    is_number = _is_told if "event" in record else _is_number
    kinds = ((COUNTS, _is_count), (NUMBERS, is_number), (TEXTS, _is_text))
    sound = all(is_one(record[name]) for names, is_one in kinds for name in names if name in record)
    return record if sound else None


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= MOST)


def _is_told(value: Any) -> bool:
    return _is_number(value) or value in WORDS


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return (record for line in lines if (record := record_of(line)) is not None)


def _has_step(record: dict[str, Any]) -> bool:
    return "step" in record
