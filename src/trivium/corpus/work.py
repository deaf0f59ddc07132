"""Unfinished work on disk: the description of a job, and its finished parts.

Each part is written next to its place and then renamed, so it is complete or absent. A process that is killed at any
moment leaves nothing to check, and the next process makes the parts that are missing. Streams of records are cut into
parts by the records alone, so neither kills nor the number of processes change any byte.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trivium import __version__
from trivium.config import Config, build, to_tree
from trivium.corpus.config import ReadConfig
from trivium.corpus.engine import Engine, Task
from trivium.corpus.read.files import Input
from trivium.corpus.read.remote import Mark, changed
from trivium.progress import Progress
from trivium.provenance import JOB, discard, fingerprint, refuse_others_pieces, write_json

PART_BYTES = 16 << 20  # minimum raw text in a part: a kill costs at most the work on one part
COUNTS, SUM = "counts.json", "sha256"  # files of a part
_BYTES_WITHOUT_TEXT = 256  # memory of a record without text; a file may have millions of them
_NUMPY_HEADERS = threading.Lock()

Settings = TypeVar("Settings", bound=Config)


@dataclass(frozen=True)
class Job(Generic[Settings]):
    """The task of a command, and the folder of its parts.

    streams: for each task the first of the `files` that it reads, and the file after its last. kept: a folder of parts
    that later jobs can use again, or None. marks: of remote files, by URL, as they were when the job began.
    """

    work: Path
    source: Path | str
    files: tuple[Path | str, ...]
    streams: tuple[tuple[int, int], ...]
    config: Settings
    seed: int
    limits: ReadConfig
    kept: Path | None
    marks: Mapping[str, Mark]

    def __hash__(self) -> int:
        return hash(self.work)

    @property
    def remedy(self) -> str:
        """The advice if a remote file has changed since the job began."""
        return f"put back what was there, or delete {self.work.parent} to begin again with what is there now"

    def path(self, *names: str) -> Path:
        """Return a path in the job's folder."""
        return self.work.joinpath(*names)


def begin_job(
    work: Path,
    config: Config,
    source: Input,
    files: Sequence[Path | str],
    *,
    seed: int,
    beside: Sequence[Path] = (),
    streams: Sequence[tuple[int, int]] | None = None,
    kept: Path | None = None,
) -> Job[Any]:
    """Return the job whose parts are in `work`, and delete the parts of any other job there.

    beside: other files that the parts depend on. streams: by default, each file is a stream. Raises DataError if a
    remote file has changed since the job began, because parts of two contents would be mixed.
    """
    described = {
        "trivium": __version__,
        "remote": isinstance(source.path, str),
        # Not resolved: sources are named after the path that was given, not after the target of a link.
        "source": _absolute(source.path),
        "files": list(map(_absolute, files)),
        "streams": streams or [(number, number + 1) for number in range(len(files))],
        "config": to_tree(config),
        "seed": seed,
        "limits": to_tree(source.limits),
        "kept": str(kept.absolute()) if kept else None,
        "inputs": fingerprint([state_of(path) for path in (*files, *beside) if isinstance(path, Path)]),
    }
    refuse_others_pieces(work)
    # A worker may outlive a killed process. It continues to write to the folder of its own job.
    folder = work / fingerprint(described)[:16]
    if not (folder / JOB).is_file():
        discard(work)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / JOB, {**described, "marks": dict(source.marks)})
    job = read_job(str(folder), type(config))
    for url, mark in job.marks.items():
        if (now := list(source.marks[url])) != mark:
            raise changed(url, mark, now, job.remedy)
    return job


def read_job(work: str, settings: type[Settings]) -> Job[Settings]:
    """Return the job whose parts are in this folder."""
    job: Job[Settings] = _job_of(work, settings, state_of(Path(work) / JOB))
    return job


@lru_cache(maxsize=2)  # read once in each process, not for each task: a job may name a million files
def _job_of(work: str, settings: type[Settings], _: tuple[str, int, int]) -> Job[Settings]:
    described = read_json(Path(work) / JOB)
    place: Callable[[str], Path | str] = str if described["remote"] else Path
    return Job(
        Path(work),
        place(described["source"]),
        tuple(map(place, described["files"])),
        tuple((first, stop) for first, stop in described["streams"]),
        build(settings, described["config"]),
        described["seed"],
        build(ReadConfig, described["limits"]),
        Path(described["kept"]) if described["kept"] else None,
        described.get("marks", {}),
    )


def _absolute(path: Path | str) -> str:
    return path if isinstance(path, str) else str(path.absolute())


def run_streams(engine: Engine, task: Callable[[str, str], Any], job: Job[Any], progress: Progress, note: str) -> None:
    """Run task(folder of the job, number of the stream) for each stream."""
    items = [str(number) for number in range(len(job.streams))]
    bound: Task = partial(task, str(job.work))
    engine.map(bound, items, lambda done: progress(done, len(items), note))


class Sized(Protocol):
    """A record that knows the size of its text."""

    @property
    def text_bytes(self) -> int: ...


Record = TypeVar("Record", bound=Sized)


class NewPart(NamedTuple):
    """A part that is being written: the folder to fill, its number in its stream, and whether it is the last."""

    into: Path
    name: str
    is_last: bool


def write_parts(
    folder: Path,
    read: Callable[[], Iterator[Record]],
    write: Callable[[NewPart, list[Record]], Mapping[str, Any]],
    *,
    min_bytes: int = 0,
    summed: bool = False,
) -> None:
    """Cut a stream of records into parts, and write those that `folder` lacks.

    write: fills the folder of a part, and returns its entries in counts.json. min_bytes: the size of a part, if it is
    more than PART_BYTES. summed: as for `lay_down`.
    """
    done = list(map(counts_of, parts_in(folder)))
    if done and done[-1]["last"]:
        return
    # Reading the finished records again is cheap compared with the work on them.
    records = islice(read(), sum(part["raw"] for part in done), None)
    is_last, number = False, len(done)
    while not is_last:
        taken, is_last = _taken(records, max(PART_BYTES, min_bytes))

        def fill(into: Path, part: tuple[str, bool] = (f"{number:05d}", is_last), taken: list[Any] = taken) -> None:
            counts = write(NewPart(into, *part), taken)
            write_json(into / COUNTS, {**counts, "raw": len(taken), "last": part[1]})

        lay_down(folder / f"{number:05d}", fill, summed=summed)
        number += 1


def _taken(records: Iterator[Record], min_bytes: int) -> tuple[list[Record], bool]:
    """Return the next records of at least `min_bytes`, and whether they are the last."""
    taken: list[Record] = []
    size = 0
    for record in records:
        taken.append(record)
        size += record.text_bytes or _BYTES_WITHOUT_TEXT
        if size >= min_bytes:
            return taken, False
    return taken, True


def parts_in(folder: Path) -> list[Path]:
    """Return the finished parts of a stream, in order."""
    parts: list[Path] = []
    while (part := folder / f"{len(parts):05d}").is_dir():
        parts.append(part)
    return parts


def stream_folder(root: Path, stream: int) -> Path:
    """Return the folder below `root` of the parts of a stream."""
    return root / f"{stream:05d}"


def all_parts_in(root: Path, streams: int) -> list[Path]:
    """Return the finished parts of all streams, in order."""
    return [part for stream in range(streams) for part in parts_in(stream_folder(root, stream))]


def counts_of(part: Path) -> dict[str, Any]:
    """Return the counts of a finished part."""
    return read_json(part / COUNTS)


def is_sound(part: Path) -> bool:
    """Return whether the files of a part, which was laid down with their sum, are unchanged."""
    try:
        return (part / SUM).read_text() == _digest_of(part)
    except (OSError, UnicodeDecodeError):
        return False


def _digest_of(part: Path) -> str:
    digest = sha256()
    for path in sorted(part.iterdir()):
        if path.name != SUM:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def put(piece: Path, place: Path) -> None:
    """Give a finished file its last name, without copying if the disk allows it."""
    try:
        os.link(piece, place)
    except OSError:
        shutil.copyfile(piece, place)


def lay_down(folder: Path, write: Callable[[Path], object], *, summed: bool = False) -> None:
    """Let `write` fill an empty folder, and then rename it to `folder`.

    If another process has made the same folder meanwhile, that one stays. summed: add a file for `is_sound`.
    """
    partial_folder = _partial(folder)
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    write(partial_folder)
    if summed:
        (partial_folder / SUM).write_text(_digest_of(partial_folder))
    try:
        partial_folder.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(partial_folder)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array to a file that is complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_array(_partial(path), array)
    _partial(path).replace(path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an .npy file. Unlike that of NumPy's own writing, the OSError names the reason, such as a full disk."""
    plain = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        file.write(plain.data)


def read_array(path: Path, *, in_place: bool = False) -> NDArray[Any]:
    """Read an .npy file. in_place: map it, so that pages are read when they are accessed."""
    # NumPy parses a header with `ast`, and Python 3.11 counts the depth of that for all threads together: a thread that
    # the garbage collector interrupts there makes another one fail with SystemError.
    with _NUMPY_HEADERS:
        # Copy-on-write gives kernels the same writable type as arrays in memory, so they compile once.
        return np.asarray(np.load(path, mmap_mode="c" if in_place else None, allow_pickle=False))


def mapped(path: Path) -> NDArray[Any]:
    """Map an .npy file into memory."""
    return read_array(path, in_place=True)


def state_of(path: Path) -> tuple[str, int, int]:
    """Return name, size and modification time, which identify a file without reading it."""
    state = path.stat() if path.exists() else path.lstat()  # lstat: a link whose target is missing
    return path.name, state.st_size, state.st_mtime_ns


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a job."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
