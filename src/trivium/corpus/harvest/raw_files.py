"""The raw files of a harvest: pages in WARC files and texts in JSON lines, in files of bounded size."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.read.warc import DEFAULT_DATE, Page, write_warc
from trivium.finite import dumps

WARC_FOLDER, JSONL_FOLDER = "warc", "jsonl"
# Curation reads these files with limits that nothing exceeds: the harvest has applied its own limits already.
AS_WRITTEN = ReadConfig(longest_bytes=1 << 40, unpacked_ratio=1 << 20)


@dataclass(slots=True)
class _Pending:
    """The pages or lines of the next file of a kind, their bytes, and the number of that file."""

    items: list[Any] = field(default_factory=list)
    size_bytes: int = 0
    number: int = 0


class RawFiles:
    """Writes `warc/part-00000.warc.gz` … and `jsonl/part-00000.jsonl.gz` … in the order documents are added."""

    def __init__(self, directory: Path, *, shard_bytes: int) -> None:
        """shard_bytes: bytes of text or HTML after which a file is closed."""
        self._directory, self._shard_bytes = directory, shard_bytes
        self._pending = {WARC_FOLDER: _Pending(), JSONL_FOLDER: _Pending()}
        self.documents = 0
        for folder in self._pending:
            (directory / folder).mkdir(parents=True, exist_ok=True)

    def add(self, document: Document) -> None:
        """Add a document as it was read: HTML (metadata `raw`) becomes a WARC record, text becomes a JSON line."""
        self.documents += 1
        metadata = document.metadata
        if metadata.get(RAW) == "html":
            body = document.text.encode("utf-8", "replace")
            url, date = str(metadata.get("url", "")), metadata.get("date")
            date = DEFAULT_DATE if date is None else str(date)
            page = Page(url, "text/html", "utf-8", body, date, document=document.id, source=document.source)
            self._append(WARC_FOLDER, page, len(body))
        else:
            kept = {key: value for key, value in metadata.items() if key != RAW}
            row = {"id": document.id, "text": document.text, "source": document.source, "metadata": kept}
            line = dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            self._append(JSONL_FOLDER, line, len(line))

    def close(self) -> None:
        """Write the documents that are still in memory."""
        for folder in self._pending:
            self._flush(folder)

    def _append(self, folder: str, item: Page | bytes, size_bytes: int) -> None:
        pending = self._pending[folder]
        pending.items.append(item)
        pending.size_bytes += size_bytes
        if pending.size_bytes >= self._shard_bytes:
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        pending = self._pending[folder]
        if not pending.items:
            return
        name = self._directory / folder / f"part-{pending.number:05d}"
        if folder == WARC_FOLDER:
            write_warc(name.with_suffix(".warc.gz"), pending.items)
        else:
            packed = gzip.compress(b"".join(pending.items), compresslevel=6, mtime=0)
            name.with_suffix(".jsonl.gz").write_bytes(packed)
        self._pending[folder] = _Pending(number=pending.number + 1)
