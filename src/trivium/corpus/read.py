"""Raw input of any kind → documents, with everything unreadable set aside, never passed over in silence."""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, overload

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Document
from trivium.corpus.encoding import Decoder, decode
from trivium.corpus.extract import RAW
from trivium.corpus.lines import TEXT_FIELDS, lines, row_of, text_of
from trivium.corpus.quarantine import Damage, Intake, Trouble
from trivium.corpus.streams import Lost, chunks, open_binary
from trivium.corpus.warc import Page, read_warc
from trivium.errors import DataError

_KINDS = {
    "pages": (".warc", ".wet"),
    "lines": (".jsonl",),
    "texts": (".txt", ".md"),
    "parquet": (".parquet",),
}
_PACKED = ("", ".gz", ".zst")
SUFFIXES = tuple(
    stem + packed
    for kind, stems in _KINDS.items()
    for stem in stems
    for packed in (_PACKED if kind != "parquet" else ("",))
)
_OWN_FIELDS = (*TEXT_FIELDS, "id", "source", RAW)  # of a row; what else it says becomes metadata
_BLOCK = 4 << 20  # bytes of a text file decoded at once


@overload
def input_files(path: Path) -> list[Path]: ...


@overload
def input_files(path: Path | str) -> list[Path | str]: ...


def input_files(path: Path | str) -> list[Path] | list[Path | str]:
    """The files at or under `path` that are named as readable, sorted: paths of a path, URLs of a URL for fsspec.

    Links that lead nowhere are among them, so that reading reports them. DataError when there are none.
    """
    found: Sequence[Path | str]
    if isinstance(path, str):
        found = _remote_files(path)
    elif not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder with {', '.join(SUFFIXES)} files")
    else:
        found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if _is_file_or_broken_link(p))
    files = [p for p in found if _name(p).lower().endswith(SUFFIXES) and not _name(p).startswith(".")]
    if not files:
        what = "is not one of" if found == [path] else "holds no file ending in one of"
        raise DataError(f"{path} {what} {', '.join(SUFFIXES)}; convert the texts to one of these")
    return files


def relative_name(path: Path | str, corpus: Path | str) -> str:
    """How a file is called inside the corpus it was found in."""
    if path == corpus:
        return _name(path)
    if isinstance(path, Path):
        return path.relative_to(corpus).as_posix()
    return path.removeprefix(str(corpus).rstrip("/")).lstrip("/")


def source_of(path: Path | str, corpus: Path | str) -> str:
    """The source a file belongs to: the folder it stands in directly under `corpus`, else its own stem."""
    first, *rest = relative_name(path, corpus).split("/")
    return first if rest else first.split(".")[0] or first


def read_any(
    path: Path | str,
    *,
    source: str,
    longest: int | None = None,
    limits: ReadConfig = ReadConfig(),
    intake: Intake | None = None,
) -> Iterator[Document | Damage]:
    """The documents of one file, HTML not yet extracted (metadata `raw`), and a Damage for each unreadable part.

    A text file longer than `longest` characters is cut at paragraphs into several documents. `intake` counts
    what was seen. Memory stays within a few times `limits.longest_bytes`, whatever the file's size.
    """
    counts = intake if intake is not None else Intake()
    name = _name(path).lower().removesuffix(".gz").removesuffix(".zst")
    try:
        if name.endswith(_KINDS["pages"]) and not _is_empty(path):
            for page in read_warc(path, limits, counts):
                yield page if isinstance(page, Damage) else page_document(page, source=source)
            return
        for item in _items(path, name, source, longest, limits):
            counts.seen += item.records if isinstance(item, Damage) else 1
            if isinstance(item, Damage):
                counts.quarantined[item.trouble] += item.records
            else:
                counts.documents += 1
            yield item
    except OSError as error:
        counts.seen += 1
        counts.quarantined[Trouble.UNREADABLE] += 1
        yield Damage(path, Trouble.UNREADABLE, f"it cannot be read: {error.strerror or error}")


def page_document(page: Page, *, source: str) -> Document:
    """A fetched page as a document, its HTML not yet extracted."""
    metadata = {"url": page.url, "date": page.date}
    if page.content_type != "text/plain":
        metadata[RAW] = "html"
    # an address is fetched more than once, and each time gives a document
    body = blake2b(page.body, digest_size=8).hexdigest()
    identity = page.document or _digest(page.url, page.date, body)
    return Document(identity, decode(page.body, page.charset), page.source or source, metadata)


def paragraphs_of(text: str, *, longest: int) -> Iterator[str]:
    """`text` cut at blank lines into pieces of at most `longest` characters where paragraphs allow it."""
    held: list[str] = []
    size = 0
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        if held and size + len(paragraph) > longest:
            yield "\n\n".join(held)
            held, size = [], 0
        held.append(paragraph)
        size += len(paragraph) + 2
    yield "\n\n".join(held)


def _items(
    path: Path | str, name: str, source: str, longest: int | None, limits: ReadConfig
) -> Iterator[Document | Damage]:
    if _is_empty(path):
        yield Damage(path, Trouble.EMPTY, "the file has 0 bytes")
        return
    with open_binary(path) as file:
        if name.endswith(_KINDS["parquet"]):
            yield from _read_parquet(file, path, source, limits)
        elif name.endswith(_KINDS["lines"]):
            yield from _read_lines(file, path, source, limits)
        else:
            yield from _read_text(file, path, source, longest, limits)


def _read_lines(
    file: BinaryIO, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    nothing = True
    for line in lines(chunks(file, limits, str(path)), limits):
        found = line if isinstance(line, Lost) else row_of(line) if line.data.strip() else None
        if found is None:
            continue
        nothing = False
        if isinstance(found, Lost):
            yield Damage(path, found.trouble, found.detail, found.offset)
        else:
            yield _row_document(found, source)
    if nothing:
        yield Damage(path, Trouble.NO_LINE, "the file holds no line")


def _read_parquet(
    file: BinaryIO, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    """Rows of a Parquet file; a row group that cannot be read is lost alone."""
    try:
        table = pq.ParquetFile(file, page_checksum_verification=True)
        columns = [
            field.name
            for field in table.schema_arrow
            if field.name in (*_OWN_FIELDS, "metadata") or _is_plain(field.type)
        ]
        groups = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield Damage(path, Trouble.PARQUET, f"its footer cannot be read: {error}")
        return
    if not set(columns) & set(TEXT_FIELDS):
        yield Damage(path, Trouble.NO_TEXT, f"no column is called any of: {', '.join(TEXT_FIELDS)}")
        return
    row = 0
    for number, rows in enumerate(groups):
        read = 0
        try:
            for batch in table.iter_batches(batch_size=64, row_groups=[number], columns=columns):
                names = batch.schema.names
                for values in zip(*map(_of_json, batch.columns), strict=True):
                    scalars = dict(zip(names, values, strict=True))
                    found = _parquet_document(scalars, path, source, row + read)
                    if isinstance(found, Document) and found.text_bytes > limits.longest_bytes:
                        what = f"row {row + read} has {found.text_bytes} bytes; the limit is {limits.longest_bytes}"
                        found = Damage(path, Trouble.TOO_LONG, what, row + read)
                    yield found
                    read += 1
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            yield Damage(
                path, Trouble.PARQUET, f"row group {number}: {error}", row + read, max(rows - read, 1)
            )
        row += rows


def _parquet_document(scalars: dict[str, Any], path: Path | str, source: str, row: int) -> Document | Damage:
    try:
        values = {name: scalar.as_py() for name, scalar in scalars.items()}
    except UnicodeDecodeError as error:
        return Damage(path, Trouble.NOT_UTF8, f"row {row}: {error.reason}", row)
    if text_of(values) is None:
        return Damage(path, Trouble.NO_TEXT, f"row {row} has no text", row)
    if isinstance(values.get("metadata"), str):  # as in a document store
        try:
            values["metadata"] = json.loads(values["metadata"])
        except (ValueError, RecursionError):
            values["metadata"] = {"metadata": values["metadata"]}
    return _row_document({k: v for k, v in values.items() if v is not None}, source)


def _read_text(
    file: BinaryIO, path: Path | str, source: str, longest: int | None, limits: ReadConfig
) -> Iterator[Document | Damage]:
    decoder, pending, number = Decoder(), "", 0
    for block, last in _blocks(file, limits, str(path)):
        if isinstance(block, Lost):
            yield Damage(path, block.trouble, block.detail, block.offset)
            continue
        text = decoder.decode(block, last=last)
        if text.count("\x00") + text.count("\ufffd") > len(text) // 100:
            yield Damage(path, Trouble.NOT_TEXT, "more than 1 % of its characters cannot be decoded")
            return
        pieces = list(paragraphs_of(pending + text, longest=longest or limits.longest_bytes))
        too_many = longest is None and len(pieces) > 1
        pending = "" if last else pieces.pop()
        if too_many or max(map(len, (*pieces, pending))) > limits.longest_bytes:
            what = f"more than {limits.longest_bytes} characters in one piece; put blank lines into it"
            yield Damage(path, Trouble.TOO_LONG, what)
            return
        for piece in filter(str.strip, pieces):
            identity = _digest(source, _name(path), str(number), piece)
            yield Document(identity, piece, source, {"file": _name(path)})
            number += 1
    if number == 0:
        yield Damage(path, Trouble.BLANK, "the file holds nothing but blanks")


def _blocks(file: BinaryIO, limits: ReadConfig, name: str) -> Iterator[tuple[bytes | Lost, bool]]:
    """The bytes of a text file in blocks, and whether each is the last."""
    held = bytearray()
    for part in chunks(file, limits, name):
        if isinstance(part, Lost):
            yield part, False
            continue
        if len(held) >= _BLOCK:
            yield bytes(held), False
            held.clear()
        held += part.data
    yield bytes(held), True


def _row_document(row: dict[str, Any], source: str) -> Document:
    text = text_of(row) or ""
    metadata = {name: value for name, value in row.items() if name not in _OWN_FIELDS}
    if isinstance(metadata.get("metadata"), dict):
        metadata |= metadata.pop("metadata")
    named = row["source"] if isinstance(row.get("source"), str) and row["source"] else source
    identity = str(row["id"]) if isinstance(row.get("id"), str | int) else _digest(named, text)
    return Document(identity, text, named, metadata)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of this type can stand in JSON, as they are or as text."""
    kinds = pa.types
    return bool(
        kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or (kinds.is_temporal(kind) and getattr(kind, "tz", None) is None)  # a zone takes a database of zones
    )


def _of_json(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _remote_files(url: str) -> list[str]:
    try:
        system, path = fsspec.core.url_to_fs(url)
        names = [path] if system.isfile(path) else sorted(system.find(path))
        if not names:
            raise FileNotFoundError("nothing is stored there")
    except (ImportError, ValueError, OSError) as error:
        raise DataError(
            f"{url} cannot be listed: {error}; check the address and its fsspec package"
        ) from None
    return [url.rstrip("/") + name.removeprefix(path.rstrip("/")) for name in names]


def _is_file_or_broken_link(path: Path) -> bool:
    return path.is_file() or (path.is_symlink() and not path.exists())


def _is_empty(path: Path | str) -> bool:
    if isinstance(path, Path):
        return path.stat().st_size == 0
    with open_binary(path) as file:
        return not file.read(1)


def _name(path: Path | str) -> str:
    return path.name if isinstance(path, Path) else path.rstrip("/").rpartition("/")[2]


def _digest(*parts: str) -> str:
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
