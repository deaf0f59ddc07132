"""Kept work: what one curation found out of each text, so that the next one, with other settings, need not.

    FILE/PLACE/texts.arrow        a stretch of a raw file's records, extracted: documents, and lines of rejects
    FILE/PLACE/MEASURE.arrow      the figures of texts by one measure, by the digest of each text

FILE stands for all that the texts depend on: the raw file, how it is extracted, this code. A measure's name stands
for its settings. Every file begins with the sha256 of what follows, so what is damaged is as good as missing.
"""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import pyarrow as pa

from trivium import __version__
from trivium.config import to_tree
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import Document
from trivium.corpus.job import state_of
from trivium.corpus.judged import Judged
from trivium.corpus.measure import Found, Measure
from trivium.corpus.parts import Stretch
from trivium.provenance import fingerprint

TEXTS = "texts.arrow"
_SUM_BYTES = 32
_PACKING = pa.ipc.IpcWriteOptions(compression="zstd")
# what decides, beside our own code, what text is found and how it is judged
_PACKAGES = ("ftfy", "justext", "lxml", "numpy", "pyarrow", "pycld2", "resiliparse", "trafilatura")


class KeptFile:
    """The kept work of one raw file; without a folder, nothing is kept and nothing is found."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the file, by `folder_of_file`."""
        self._folder = folder

    def texts(self, place: int) -> Stretch[Judged] | None:
        """The extracted stretch at a place among the file's parts; None when it is not kept, or damaged."""
        table = _read(self._folder / _place(place) / TEXTS) if self._folder else None
        if table is None:
            return None
        told = json.loads(table.schema.metadata[b"told"])
        columns = (table[name].to_pylist() for name in ("id", "text", "source", "metadata", "line"))
        items: list[Document | bytes] = [
            Document(_text(i), _text(t), _text(s), json.loads(m)) if line is None else line
            for i, t, s, m, line in zip(*columns, strict=True)
        ]
        return Stretch(Judged(items, told["tallies"], told["damage"]), told["raw"], told["last"])

    def keep_texts(self, place: int, stretch: Stretch[Judged]) -> None:
        """Keep an extracted stretch."""
        if self._folder is None:
            return
        found = stretch.records
        rows = [_row(item) for item in found.items]
        names = ("id", "text", "source", "metadata", "line")
        columns = zip(*rows, strict=True) if rows else [[] for _ in names]
        told = {"tallies": found.tallies, "damage": found.damage, "raw": stretch.raw, "last": stretch.last}
        table = pa.table([pa.array(column, pa.large_binary()) for column in columns], names=names)
        table = table.replace_schema_metadata({"told": json.dumps(told)})
        _write(self._folder / _place(place) / TEXTS, table)

    def figures(self, place: int) -> "KeptFigures":
        """The figures of the texts at a place."""
        return KeptFigures(self._folder / _place(place) if self._folder else None)


class KeptFigures:
    """Found of texts that were measured before, or are measured now; an `Ask` for steps."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the place among a file's parts; None: measure."""
        self._folder = folder
        self._known: dict[str, dict[bytes, Found]] = {}  # by measure and the digest of the text
        self._grown: set[str] = set()
        self._digests: dict[str, bytes] = {}

    def __call__(self, measure: Measure, texts: Sequence[str]) -> Sequence[Found]:
        """The figures of each text."""
        if self._folder is None:
            return measure(texts)
        if measure.key not in self._known:
            self._known[measure.key] = _figures_in(_read(self._folder / file_of_measure(measure)))
        known = self._known[measure.key]
        digests = list(map(self._digest, texts))
        new = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if new:
            known.update(zip(new, measure(list(new.values())), strict=True))
            self._grown.add(measure.key)
        return [known[digest] for digest in digests]

    def save(self) -> None:
        """Keep what was measured."""
        for key in sorted(self._grown):
            assert self._folder is not None, f"{key} was measured to be kept, but there is no folder"
            known = self._known[key]
            columns = [list(known), *map(list, zip(*known.values(), strict=True))]
            _write(
                self._folder / f"{key}.arrow", pa.table(columns, names=list(map(str, range(len(columns)))))
            )
        self._grown.clear()

    def _digest(self, text: str) -> bytes:
        if text not in self._digests:
            content = text.encode("utf-8", "surrogatepass")
            self._digests[text] = hashlib.blake2b(content, digest_size=16).digest()
        return self._digests[text]


def folder_of_file(kept: Path, path: Path, root: Path, config: ExtractConfig) -> Path:
    """Where the kept work of a raw file below `root` lies."""
    told_by = [path.relative_to(root).as_posix(), state_of(path), to_tree(config), code()]
    return kept / fingerprint(told_by)


def file_of_measure(measure: Measure) -> str:
    """The name of the file that holds the figures of a measure."""
    return f"{measure.key}.arrow"


@lru_cache(maxsize=1)
def code() -> str:
    """A hash of all code that kept work depends on: the sources of this package, and the versions of others."""
    here = Path(__file__).parent
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(here.rglob("*.py"))]
    return fingerprint([__version__, platform.python_version(), sources, list(map(_version, _PACKAGES))])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _place(number: int) -> str:
    return f"{number:05d}"


def _row(item: Document | bytes) -> tuple[bytes | None, ...]:
    if isinstance(item, bytes):
        return None, None, None, None, item
    # in the order of its keys, which a reject's line shows
    told = json.dumps(item.metadata, ensure_ascii=False)
    return *(text.encode("utf-8", "surrogatepass") for text in (item.id, item.text, item.source, told)), None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _figures_in(table: pa.Table | None) -> dict[bytes, Found]:
    if table is None:
        return {}
    digests, *columns = (column.to_pylist() for column in table.columns)
    return dict(zip(digests, zip(*columns, strict=True), strict=True))


def _write(path: Path, table: pa.Table) -> None:
    """A table as a file that is there whole or not at all, with the sum of its bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=_PACKING) as file:
        file.write_table(table)
    content = sink.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    # Another curation that ends meanwhile may delete the folder, which it has no use for: then nothing is kept of this.
    with suppress(FileNotFoundError):
        with open(partial, "wb") as out:
            out.write(hashlib.sha256(content).digest())
            out.write(content)
        partial.replace(path)


def _read(path: Path) -> pa.Table | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    body = memoryview(content)[_SUM_BYTES:]
    if hashlib.sha256(body).digest() != content[:_SUM_BYTES]:
        return None
    with pa.ipc.open_file(pa.py_buffer(body)) as file:
        return file.read_all()
