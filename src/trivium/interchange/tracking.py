"""A run's metrics for those who read TensorBoard or Weights & Biases (extra `track`).

Beside the training, not in it: it reads what was written, so it can begin at any time, and nothing of it hurts a run.
"""

import importlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trivium.errors import ConfigError, MachineError
from trivium.redact import redacted
from trivium.untrusted import open_regular

KINDS = ("tensorboard", "wandb")
STEP, TIME = "step", "time"
NEVER = -1  # before the first step
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class Point(NamedTuple):
    """Numbers of a step by name, and the second at which they were written, where that is known."""

    step: int
    time: float | None
    values: dict[str, float]


class Tracker(Protocol):
    """Something that keeps points. close: what a person does next."""

    def add(self, point: Point) -> None: ...

    def close(self) -> str: ...


def point_of(record: Mapping[str, Any]) -> Point:
    """The numbers of a record of metrics or of tasks; of nested ones the path: `tasks/hans/0/accuracy`."""
    seconds = record.get(TIME)
    rest = {k: v for k, v in record.items() if k not in (STEP, TIME)}
    return Point(int(record[STEP]), seconds, dict(_numbers(rest, "")))


def tracker(kind: str, run: Path, config: Mapping[str, Any], *, online: bool = False) -> Tracker:
    """`tensorboard[=FOLDER]`, by default RUN/tensorboard, or `wandb[=PROJECT]`. config: kept beside the run. online:
    wandb may send what it keeps.

    Raises ConfigError for another kind or a FOLDER that is a file, MachineError where its library is missing.
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
    """The whole lines of files that grow. A resumed run drops the lines of steps that it does again, by writing the
    file anew: lines that were given before are not given again. record_of: what a line holds, None of what is none."""

    def __init__(self, paths: Iterable[Path], record_of: Callable[[bytes], dict[str, Any] | None]) -> None:
        self.paths, self._record_of = tuple(paths), record_of
        self._given: set[int] = set()
        self._read: dict[Path, tuple[int, int]] = {}  # which file, and how far

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Records that came since the last time."""
        for path in self.paths:
            for line in self._lines(path):
                record = None if hash(line) in self._given else self._record_of(line)
                if record is not None and STEP in record:
                    self._given.add(hash(line))
                    yield record

    def _lines(self, path: Path) -> Iterator[bytes]:
        """The whole lines from where reading ended, one at a time; from the start of a file that was written anew."""
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
    """Writes one event file into a folder. Points of a step that is done again hide the earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write = _library("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._events = _library("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._writer: Any = None
        self._last = NEVER

    def add(self, point: Point) -> None:
        """Keep the numbers of a step."""
        if self._writer is None:
            _wait_for_a_later_name(self.folder)
            # From this step on, TensorBoard no longer shows what earlier files of the folder contain.
            self._writer = self._write(str(self.folder), purge_step=point.step)
        elif point.step < self._last:
            # The same for what this file contains. A second file would not do: names of files that were made in the
            # same second sort by a counter without leading zeros, so that the tenth is read before the ninth.
            restart = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.file_writer.add_event(self._events.Event(session_log=restart), step=point.step)
        self._last = point.step
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, global_step=point.step, walltime=point.time)
        self._writer.flush()

    def close(self) -> str:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
        return f"tensorboard --logdir {shlex.quote(str(self.folder))}"


def _wait_for_a_later_name(folder: Path) -> None:
    """Return once an event file that is made now sorts after those of a folder: TensorBoard reads files in the order of
    their names, which begin with the second in which each was made."""
    made = {name[1] for path in folder.glob("*") if (name := _EVENT_FILE.match(path.name))}
    while f"{int(time.time()):010d}" in made:
        time.sleep(0.02)


class WeightsAndBiases:
    """A run of wandb, written to RUN/wandb and sent only where it is `online`."""

    def __init__(self, project: str, run: Path, config: Mapping[str, Any], *, online: bool) -> None:
        self._online = online
        self._run = _library("wandb", "wandb").init(
            project=project,
            name=run.resolve().name,
            dir=str(run),
            config=redacted(config),
            mode="online" if online else "offline",
        )
        # wandb's own count only rises; steps that a resumed run does again come back to where they were.
        self._run.define_metric("*", step_metric=STEP)

    def add(self, point: Point) -> None:
        """Keep the numbers of a step."""
        self._run.log({**point.values, STEP: point.step})

    def close(self) -> str:
        """Finish the run."""
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
        with suppress(OverflowError):  # more digits than a number of these tools has
            yield path, float(value)
