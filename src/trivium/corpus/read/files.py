"""The files of a corpus: which there are at a path or an address, what each is called, which source it belongs to."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import fsspec

from trivium.corpus.config import ReadConfig
from trivium.errors import DataError

PAGES, LINES, TEXTS, PARQUET = ((".warc", ".wet"), (".jsonl", ".ndjson", ".json"), (".txt", ".md"), (".parquet",))
_PACKINGS = (".gz", ".zst")
SUFFIXES = (*(stem + packed for stem in (*PAGES, *LINES, *TEXTS) for packed in ("", *_PACKINGS)), *PARQUET)
_OTHER_PACKINGS = (*_PACKINGS, ".bz2", ".xz", ".lz4", ".zip")
# of a file that is one of many with the same content: part-00000, train-00000-of-01024, CC-MAIN-<time>-<time>-00000
_NUMBER = re.compile(r"[-_](?:of[-_])?(?:\d{5,7}|\d{14})(?=[-_]|$)")
MOST_LEVELS, MOST_WAYS = 200, 100  # folders within one another; how often links may lead to one folder
_SHOWN = 5  # endings named
# what stores tell the contents of a file by
_MARKS = ("mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag", "md5Hash", "oid")


class Input(NamedTuple):
    """A file or folder to read, and how to read it."""

    path: Path | str
    limits: ReadConfig = ReadConfig()


class Listing(NamedTuple):
    """What there is: the files that are named as readable, sorted, and how many others, by their ending or kind."""

    files: Sequence[Path | str]
    others: Mapping[str, int]


def list_files(path: Path | str) -> Listing:
    """List the files at or under `path`, also behind links to folders: paths for a path, URLs for a URL.

    Links that lead nowhere are among them, so that reading reports them; hidden files and folders are not. DataError
    when none is readable, or a folder cannot be looked into.
    """
    found: Iterable[tuple[Path | str, bool]]
    if isinstance(path, str):
        found = [(url, True) for url in sorted(_remote_files(path))]
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
            others["pipe or device"] += 1  # to read it may take for ever
        elif name_of(one).lower().endswith(SUFFIXES):
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
    return Listing(files, MappingProxyType(dict(others)))


@overload
def input_files(path: Path) -> list[Path]: ...


@overload
def input_files(path: Path | str) -> list[Path | str]: ...


def input_files(path: Path | str) -> list[Path] | list[Path | str]:
    """Return the readable files of `list_files`."""
    return list(list_files(path).files)


def states_of(corpus: Path | str) -> list[tuple[Any, ...]]:
    """Return name, size and time of change or tag of the readable files, which identify them without reading."""
    files = list_files(corpus).files
    if isinstance(corpus, str):
        told = _remote_files(corpus)
        return [(file, told[str(file)].get("size"), *map(told[str(file)].get, _MARKS)) for file in files]
    states = [(path, path.stat() if path.exists() else path.lstat()) for path in map(Path, files)]
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


def told_endings(others: Mapping[str, int]) -> str:
    """Return a text for a terminal: how many files have which ending, the most frequent first."""
    ranked = sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))
    more = sum(count for _, count in ranked[_SHOWN:])
    told = [f"{count:,} {ending}" for ending, count in ranked[:_SHOWN]]
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

    From its own name, suffixes and the number of a shard are removed. Files whose name is only a number, and texts,
    which are often thousands, belong to one source that is named after `corpus`.
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
    """Return a name of a file as text that can be written anywhere: what is not UTF-8 in it is replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def name_of(path: Path | str) -> str:
    """Return the last part of a path or URL."""
    return path.name if isinstance(path, Path) else path.rstrip("/").rpartition("/")[2]


def kind_name(path: Path | str) -> str:
    """Return the name in lower case, without the ending of a packing: it ends as its kind."""
    return name_of(path).lower().removesuffix(".gz").removesuffix(".zst")


def is_hidden(name: str) -> bool:
    """Return whether a file, by its name inside a corpus, is hidden or stands in a hidden folder."""
    return any(part.startswith(".") for part in name.split("/"))


def _below(
    folder: Path, above: frozenset[tuple[int, int]], ways: Counter[tuple[int, int]]
) -> Iterator[tuple[Path, bool]]:
    """All below a folder, and whether it is a file; a link that leads back to a folder it lies in is not followed.

    ways: how often each folder was reached. Thirty folders, each with two links to the next one, are reached in a
    billion ways. Raises DataError above MOST_WAYS, and above MOST_LEVELS of folders within one another.
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
    if ways[here] > MOST_WAYS:
        raise DataError(
            f"{folder} is reached in more than {MOST_WAYS} ways, through links to folders; remove some of the links"
        )
    if len(above) > MOST_LEVELS:
        raise DataError(
            f"{folder} lies more than {MOST_LEVELS} folders deep in the corpus; move it up, or read it by itself"
        )
    for entry in inside:
        # a link is asked as a path, which answers where it leads in a circle, too
        path, linked = Path(entry), entry.is_symlink()
        if path.is_dir() if linked else entry.is_dir():
            if not entry.name.startswith("."):
                yield from _below(path, above | {here}, ways)
        else:
            yield path, path.is_file() or not path.exists() if linked else entry.is_file()


def _remote_files(url: str) -> dict[str, Mapping[str, Any]]:
    """Return the URL of each file at a URL, and what its store says of it."""
    try:
        system, path = fsspec.core.url_to_fs(url)
        found = {path: system.info(path)} if system.isfile(path) else system.find(path, detail=True)
        if not found:
            raise FileNotFoundError("nothing is stored there")
    except (ImportError, ValueError, OSError) as error:
        raise DataError(f"{url} cannot be listed: {error}; check the address and its fsspec package") from None
    return {url.rstrip("/") + name.removeprefix(path.rstrip("/")): told for name, told in found.items()}


def _ending(name: str) -> str:
    """Return the suffix of a name, including that of a packing."""
    path = PurePath(name.lower())
    before = path.with_suffix("").suffix if path.suffix in _OTHER_PACKINGS else ""
    return before + path.suffix or "without an ending"
