"""The files of a corpus at a path or URL, their names, and the source that each belongs to."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple, overload

from trivium.corpus.config import ReadConfig
from trivium.corpus.read.arrow import ARROW, without_arrow
from trivium.corpus.read.remote import Mark, mark_of, remote_files
from trivium.errors import DataError

PAGES, LINES, TEXTS, PARQUET = ((".warc", ".wet"), (".jsonl", ".ndjson", ".json"), (".txt", ".md"), (".parquet",))
_PACKINGS = (".gz", ".zst")
SUFFIXES = (*(stem + packed for stem in (*PAGES, *LINES, *TEXTS) for packed in ("", *_PACKINGS)), *PARQUET)
_OTHER_PACKINGS = (*_PACKINGS, ".bz2", ".xz", ".lz4", ".zip")
# The number of a shard: part-00000, train-00000-of-01024, CC-MAIN-<time>-<time>-00000
_NUMBER = re.compile(r"[-_](?:of[-_])?(?:\d{5,7}|\d{14})(?=[-_]|$)")
MAX_FOLDER_LEVELS, MAX_PATHS_TO_A_FOLDER = 200, 100  # the latter through links
_MAX_ENDINGS_SHOWN = 5


class Input(NamedTuple):
    """A file or folder to read, and how to read it. marks: of remote files, by URL."""

    path: Path | str
    limits: ReadConfig = ReadConfig()
    marks: Mapping[str, Mark] = MappingProxyType({})


class Listing(NamedTuple):
    """The files with a readable ending, sorted, and the number of other files by their ending or kind."""

    files: Sequence[Path | str]
    others: Mapping[str, int]


def list_files(path: Path | str) -> Listing:
    """List the files at or under `path`, also behind links to folders: paths for a path, URLs for a URL.

    Broken links are included, so that reading reports them; hidden files and folders are not. Raises DataError if no
    file is readable, or a folder cannot be listed.
    """
    found: Iterable[tuple[Path | str, bool]]
    if isinstance(path, str):
        found = [(url, True) for url in sorted(remote_files(path))]
    elif path.is_dir():
        found = sorted(_below(path, frozenset(), Counter()))
    elif path.exists():
        found = [(path, path.is_file())]
    else:
        raise DataError(f"{path} does not exist; give a file or folder with {', '.join(SUFFIXES)} files")
    files: list[Path | str] = []
    others: Counter[str] = Counter()
    for one, is_file in found:
        if is_hidden(relative_name(one, path)):
            continue
        if not is_file:
            others["pipe or device"] += 1  # reading it may block forever
        elif name_of(one).lower().endswith((*SUFFIXES, ARROW)):
            files.append(one)
        else:
            others[_ending(name_of(one))] += 1
    if not files:
        what = f"holds no file ending in one of {', '.join(SUFFIXES)}"
        if found == [(path, False)]:
            what = f"is a pipe or device, not one of {', '.join(SUFFIXES)}"
        elif found == [(path, True)]:
            what = f"is not one of {', '.join(SUFFIXES)}"
        elif others:
            what += f" (it has {told_endings(others)})"
        raise DataError(f"{path} {what}; convert the texts to one of these")
    texts = without_arrow(files)
    others.update(_ending(name_of(one)) for one in sorted({*files} - {*texts}, key=str))
    return Listing(texts, MappingProxyType(dict(others)))


@overload
def input_files(path: Path) -> list[Path]: ...


@overload
def input_files(path: Path | str) -> list[Path | str]: ...


def input_files(path: Path | str) -> list[Path] | list[Path | str]:
    """Return the readable files of `list_files`."""
    return list(list_files(path).files)


def states_of(corpus: Path | str) -> list[tuple[Any, ...]]:
    """Return name, size and modification time or tag of the readable files, which identify them without reading."""
    files = list_files(corpus).files
    if isinstance(corpus, str):
        infos = remote_files(corpus)
        return [(file, infos[str(file)].get("size"), *mark_of(infos[str(file)])) for file in files]
    states = [(path, path.stat() if path.exists() else path.lstat()) for path in map(Path, files)]
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


def marks_of(corpus: Path | str) -> dict[str, Mark]:
    """Return what identifies the readable files of a URL; an empty dict for a path."""
    if isinstance(corpus, Path):
        return {}
    return {str(file): mark for file, _, *mark in states_of(corpus)}


def told_endings(others: Mapping[str, int]) -> str:
    """Return the number of files of each ending for a terminal, the most frequent first."""
    ranked = sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))
    more = sum(count for _, count in ranked[_MAX_ENDINGS_SHOWN:])
    told = [f"{count:,} {ending}" for ending, count in ranked[:_MAX_ENDINGS_SHOWN]]
    return ", ".join([*told, *([f"{more:,} others"] if more else [])])


def relative_name(path: Path | str, corpus: Path | str) -> str:
    """Return the name of a file inside the corpus that it was found in."""
    if path == corpus:
        return shown(name_of(path))
    if isinstance(path, Path):
        return shown(path.relative_to(corpus).as_posix())
    return path.removeprefix(str(corpus).rstrip("/")).lstrip("/")


def source_of(path: Path | str, corpus: Path | str) -> str:
    """Return the source of a file: the name of its folder directly under `corpus`, else the file's own name.

    Suffixes and the number of a shard are removed from its name. Files whose name is only a number, and text files, of
    which there may be thousands, belong to one source that is named after `corpus`.
    """
    first, *rest = relative_name(path, corpus).split("/")
    stem = first.split(".")[0] or first
    if rest:
        return first
    if path != corpus and (stem.isdecimal() or kind_name(path).endswith(TEXTS)):
        named = corpus.resolve() if isinstance(corpus, Path) and corpus.name in ("", "..") else corpus
        return shown(name_of(named)) or stem
    return _NUMBER.sub("", stem) or stem


def shown(name: str) -> str:
    """Return a file name as valid text: bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def name_of(path: Path | str) -> str:
    """Return the last part of a path or URL."""
    return path.name if isinstance(path, Path) else path.rstrip("/").rpartition("/")[2]


def kind_name(path: Path | str) -> str:
    """Return the name in lower case without the ending of a compression, so that it ends as its kind."""
    return name_of(path).lower().removesuffix(".gz").removesuffix(".zst")


def is_hidden(name: str) -> bool:
    """Return whether a file, by its name inside a corpus, is hidden or in a hidden folder."""
    return any(part.startswith(".") for part in name.split("/"))


def _below(
    folder: Path, above: frozenset[tuple[int, int]], ways: Counter[tuple[int, int]]
) -> Iterator[tuple[Path, bool]]:
    """Yield everything below a folder, and whether it is a file. A link to a folder that contains it is not followed.

    ways: how often each folder was reached. Thirty folders, each with two links to the next one, have a billion paths.
    Raises DataError above MAX_PATHS_TO_A_FOLDER paths to a folder, and above a depth of MAX_FOLDER_LEVELS.
    """
    try:
        state = folder.stat()
        here = (state.st_dev, state.st_ino)
        with os.scandir(folder) as entries:
            inside = list(entries) if here not in above else []
    except OSError as error:
        raise DataError(
            f"{folder} cannot be looked into ({error.strerror}); fix its permissions, or move it away"
        ) from None
    ways[here] += 1
    if ways[here] > MAX_PATHS_TO_A_FOLDER:
        raise DataError(
            f"{folder} is reached in more than {MAX_PATHS_TO_A_FOLDER} ways, through links to folders; remove some of "
            f"the links"
        )
    if len(above) > MAX_FOLDER_LEVELS:
        raise DataError(
            f"{folder} lies more than {MAX_FOLDER_LEVELS} folders deep in the corpus; move it up, or read it by itself"
        )
    for entry in inside:
        # Path.is_dir, unlike DirEntry.is_dir, returns False for a link in a circle.
        path, linked = Path(entry), entry.is_symlink()
        if path.is_dir() if linked else entry.is_dir():
            if not entry.name.startswith("."):
                yield from _below(path, above | {here}, ways)
        else:
            yield path, path.is_file() or not path.exists() if linked else entry.is_file()


def _ending(name: str) -> str:
    """Return the suffix of a name, including that of a packing."""
    path = PurePath(name.lower())
    before = path.with_suffix("").suffix if path.suffix in _OTHER_PACKINGS else ""
    return before + path.suffix or "without an ending"
