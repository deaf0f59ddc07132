"""A curation in progress, as it lies on disk: what was asked for, and pieces of work that are done or not.

Every piece is written beside its place and renamed into it, so what is there is whole: a process that is
killed at any moment leaves nothing that has to be doubted, and a new one does the pieces that are missing.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium import __version__
from trivium.config import build, to_tree
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import CurateConfig, ReadConfig
from trivium.corpus.read.inputs import Input, as_read_at, files_at
from trivium.corpus.read.listing import input_files
from trivium.corpus.read.raw_files import JSONL_FOLDER, WARC_FOLDER
from trivium.corpus.select.classifier import model_file
from trivium.corpus.steps import Keep
from trivium.errors import DataError
from trivium.provenance import JOB, discard, fingerprint, refuse_others_pieces, write_json

_HEADERS = threading.Lock()  # of arrays: read by one thread at a time
EVALUATION_ITEMS, HELDOUT = "evaluation_items.jsonl", "heldout"


@dataclass(frozen=True)
class Job:
    """One curation: its folder of pieces, the harvest, its raw files in order, config without blend, seed, and how
    they are read; a hash of it all."""

    identity: str
    work: Path
    source: Path
    files: tuple[Path, ...]
    config: CurateConfig
    seed: int
    limits: ReadConfig

    def __hash__(self) -> int:
        return hash((self.identity, self.work))

    def path(self, *names: str) -> Path:
        """A place in the folder of pieces."""
        return self.work.joinpath(*names)


def begin_job(
    work: Path,
    source: Path,
    config: CurateConfig,
    *,
    seed: int,
    files: Sequence[Path] | None = None,
    limits: ReadConfig = ReadConfig(),
) -> Job:
    """The job of this folder; pieces that belong to another config, seed or input are deleted.

    No piece depends on the blend, so it is no part of the job: a slip in it, which shows at the end, costs nothing.
    files: what is read, below `source` or that itself; without them `source` is a harvest.
    """
    files = raw_files(source) if files is None else files
    described = {
        "trivium": __version__,
        "source": str(source.absolute()),  # not where links lead: sources are called by what was named
        "files": [str(path.relative_to(source)) for path in files],
        "config": {**to_tree(config), "blend": {}},
        "seed": seed,
        "limits": to_tree(limits),
        "inputs": fingerprint(
            [state_of(path) for path in (*files, *_other_inputs(source), *files_beside(config))]
        ),
    }
    return read_job(str(folder_of_job(work, described)))


def folder_of_job(work: Path, described: Mapping[str, Any]) -> Path:
    """The folder of such a job's pieces in the folder `work`; those of any other job are deleted, and nothing else.

    A worker may outlive a process that was killed: what it still writes goes to the folder of its own job.
    """
    refuse_others_pieces(work)
    folder = work / fingerprint(described)[:16]
    if not (folder / JOB).is_file():
        discard(work)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / JOB, described)
    return folder


def read_job(work: str) -> Job:
    """The job whose pieces lie in this folder; what a worker knows about it."""
    return _job_of(work, state_of(Path(work) / JOB))


@lru_cache(maxsize=2)
def _job_of(work: str, _: tuple[str, int, int]) -> Job:
    # Read once a process, not once a task: a job of a million files names them all.
    described = read_json(Path(work) / JOB)
    source = Path(described["source"])
    return Job(
        identity=fingerprint(described),
        work=Path(work),
        source=source,
        files=tuple(source / name for name in described["files"]),
        config=build(CurateConfig, described["config"]),
        seed=described["seed"],
        limits=build(ReadConfig, described["limits"]),
    )


def evaluation_items(source: Path) -> dict[str, str]:
    """Evaluation text by id, as the harvest laid it down; none when there is no such file."""
    path = source / EVALUATION_ITEMS
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return {str(row["id"]): str(row["text"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); harvest again") from None


def evaluation_texts(job: Job) -> dict[str, str]:
    """Every text that must not be trained on, by its item: the harvest's, and those the config names.

    They are extracted and tidied as the corpus is, or a letter written in another way would hide what stands there.
    """
    found = evaluation_items(job.source)
    extract = extract_step(job.config.extract)
    for place in job.config.decontamination.against:
        for number, document in enumerate(as_read_at(Input(Path(place)))):
            verdict = extract.judge(document)
            found[f"{place}:{number}"] = verdict.document.text if isinstance(verdict, Keep) else ""
    return found


def lay_down(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder by `write`, which is given an empty one; it takes its place when it is whole.

    Where another process made the same meanwhile, that one stays.
    """
    partial = _partial(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(partial)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """An array as a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    write_array(partial, array)
    partial.replace(path)


def _partial(path: Path) -> Path:
    """Where this process writes what takes this place when it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """An array as an .npy file. NumPy's own writing does not say why it failed: that a disk is full, for one."""
    plain = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        file.write(plain.data)


def read_array(path: Path, *, in_place: bool = False) -> NDArray[Any]:
    """An array of a file. in_place: its pages are read when they are touched."""
    # NumPy reads a header by `ast`, which counts its depth for all threads of Python 3.11 together: where one is
    # interrupted in it by the collector, another's count is wrong, and one of them ends with SystemError.
    with _HEADERS:
        # copy-on-write, so that kernels see the same writable type as for arrays in memory and compile once
        return np.asarray(np.load(path, mmap_mode="c" if in_place else None, allow_pickle=False))


def mapped(path: Path) -> NDArray[Any]:
    """An array of a file, its pages read when they are touched."""
    return read_array(path, in_place=True)


def raw_files(source: Path) -> list[Path]:
    """The raw files of a harvest, in order; DataError when it has none."""
    folders = [source / name for name in (WARC_FOLDER, JSONL_FOLDER) if (source / name).is_dir()]
    if not folders:
        raise DataError(
            f"{source} is no harvest ({WARC_FOLDER}/ and {JSONL_FOLDER}/ are missing); run `trivium corpus harvest`"
        )
    filled = [folder for folder in folders if any(folder.iterdir())]
    if not filled:
        raise DataError(f"{source} holds no raw file in {WARC_FOLDER}/ or {JSONL_FOLDER}/; harvest again")
    return [path for folder in filled for path in input_files(folder)]


def files_beside(config: CurateConfig) -> list[Path]:
    """The files a config names that documents are judged by: a model, where it exists, and evaluation texts."""
    model = config.classifier.model if "classifier" in config.filters else None
    found = [file for file in ([model_file(Path(model))] if model else []) if file.is_file()]
    return found + [file for place in config.decontamination.against for file in files_at(Path(place))]


def _other_inputs(source: Path) -> list[Path]:
    heldout = source / HELDOUT
    found = sorted(heldout.iterdir()) if heldout.is_dir() else []
    return [*found, *(path for path in (source / EVALUATION_ITEMS,) if path.is_file())]


def state_of(path: Path) -> tuple[str, int, int]:
    """What a file is told by without reading it: name, size, time of change."""
    state = path.stat() if path.exists() else path.lstat()  # a link that leads nowhere
    return path.name, state.st_size, state.st_mtime_ns


def read_json(path: Path) -> dict[str, Any]:
    """A file of plain data that a job wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
