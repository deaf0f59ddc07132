"""Export a run's metrics to TensorBoard or Weights & Biases (extra `track`).

This reads files that the training wrote, so it can start at any time and cannot disturb the run.
"""

import heapq
import importlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import ConfigError, MachineError
from trivium.redact import redacted
from trivium.untrusted import open_regular

KINDS = ("tensorboard", "wandb")
STEP, TIME = "step", "time"
BEFORE_FIRST_STEP = -1
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class Point(NamedTuple):
    """Named numbers of a step, and the time at which they were written (seconds, None if unknown)."""

    step: int
    time: float | None
    values: dict[str, float]


def point_of(record: Mapping[str, Any]) -> Point:
    """Convert a record of metrics or tasks. Nested numbers are named by their path, such as `tasks/hans/0/accuracy`."""
    seconds = record.get(TIME)
    rest = {k: v for k, v in record.items() if k not in (STEP, TIME)}
    return Point(int(record[STEP]), seconds, dict(_numbers(rest, "")))


def tracker(
    kind: str, run: Path, config: Mapping[str, Any], *, online: bool = False
) -> "TensorBoard | WeightsAndBiases":
    """Create `tensorboard[=FOLDER]` (default RUN/tensorboard) or `wandb[=PROJECT]`.

    config: stored with the run. online: allow wandb to upload. Raises ConfigError for another kind or if FOLDER
    is a file, and MachineError if the library is missing.
    """
    name, _, where = kind.partition("=")
    if name not in KINDS:
        raise ConfigError(f"--to {kind}: '{name}' is not known; write {' or '.join(KINDS)}")
    if name == "tensorboard":
        folder = Path(where) if where else run / "tensorboard"
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--to {kind}: {folder} is a file; name a folder")
        return TensorBoard(folder)
    return WeightsAndBiases(where or "trivium", run, config, online=online)


class NewLines:
    """Iterates over complete new lines of growing files.

    A resumed run rewrites the file without the lines of repeated steps; lines that were returned before are not
    returned again. record_of: parses a line, or returns None for one that is no record.
    """

    def __init__(self, paths: Iterable[Path], record_of: Callable[[bytes], dict[str, Any] | None]) -> None:
        self.paths, self._record_of = tuple(paths), record_of
        self._given: set[int] = set()
        self._read: dict[Path, tuple[int, int]] = {}  # inode and offset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the records that were added since the last iteration, those of all files in the order of steps: a step
        before the last one is of a resumed run, and hides what follows it."""
        yield from heapq.merge(*map(self._records, self.paths), key=lambda record: record[STEP])

    def _records(self, path: Path) -> Iterator[dict[str, Any]]:
        for line in self._lines(path):
            record = None if hash(line) in self._given else self._record_of(line)
            if record is not None and STEP in record:
                self._given.add(hash(line))
                yield record

    def _lines(self, path: Path) -> Iterator[bytes]:
        """Yield complete lines from the last offset on, or from the start if the file was rewritten."""
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            number, offset = self._read.get(path, (found.st_ino, 0))
            if number != found.st_ino or found.st_size < offset:
                offset = 0
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                self._read[path] = found.st_ino, offset
                yield line


class TensorBoard:
    """Writes one event file into a folder. Points of a repeated step hide the earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write = _library("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._events = _library("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._writer: Any = None
        self._last = BEFORE_FIRST_STEP

    def add(self, point: Point) -> None:
        """Write the numbers of a step."""
        if self._writer is None:
            _wait_for_a_later_name(self.folder)
            # TensorBoard then hides what earlier files of the folder contain from this step on.
            self._writer = self._write(str(self.folder), purge_step=point.step)
        elif point.step < self._last:
            # Do the same for this file's points. A second file would not work: files made in the same second sort by
            # a counter without leading zeros, so the tenth would be read before the ninth.
            restart = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.file_writer.add_event(self._events.Event(session_log=restart), step=point.step)
        self._last = point.step
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, global_step=point.step, walltime=point.time)
        self._writer.flush()

    def close(self) -> str:
        """Close the file; returns the command that shows it."""
        if self._writer is not None:
            self._writer.close()
        return f"tensorboard --logdir {shlex.quote(str(self.folder))}"


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until a new event file sorts after those of the folder. TensorBoard reads files by name, which begins
    with the second of creation."""
    made = {name[1] for path in folder.glob("*") if (name := _EVENT_FILE.match(path.name))}
    while f"{int(time.time()):010d}" in made:
        time.sleep(0.02)


class WeightsAndBiases:
    """A wandb run, written to RUN/wandb and uploaded only if `online`."""

    def __init__(self, project: str, run: Path, config: Mapping[str, Any], *, online: bool) -> None:
        self._online = online
        self._run = _library("wandb", "wandb").init(
            project=project,
            name=run.resolve().name,
            dir=str(run),
            config=redacted(config),
            mode="online" if online else "offline",
        )
        # wandb's own counter only increases, but a resumed run repeats steps.
        self._run.define_metric("*", step_metric=STEP)

    def add(self, point: Point) -> None:
        """Log the numbers of a step."""
        self._run.log({**point.values, STEP: point.step})

    def close(self) -> str:
        """Finish the run; returns what to do next."""
        where, url = Path(self._run.dir).parent, self._run.url
        self._run.finish()
        return f"open {url}" if self._online else f"wandb sync {shlex.quote(str(where))}"


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MachineError(
            f"--to {package} needs {package} ({error}); install it with `pip install -e '.[track]'`"
        ) from None


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # integers beyond the float range
            yield path, float(value)
