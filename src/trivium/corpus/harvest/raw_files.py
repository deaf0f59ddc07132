"""The raw files of a harvest: pages in WARC files and texts in JSON lines, in files of bounded size."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.read.warc import Page, write_warc

WARC_FOLDER, JSONL_FOLDER = "warc", "jsonl"
# The limits with which they are read: what a harvest took by its own limits is not refused a second time.
AS_WRITTEN = ReadConfig(longest_bytes=1 << 40, unpacked_ratio=1 << 20)


class RawFiles:
    """Writes `warc/part-00000.warc.gz` … and `jsonl/part-00000.jsonl.gz` … in the order documents are added."""

    def __init__(self, directory: Path, *, shard_bytes: int) -> None:
        """shard_bytes: bytes of text or HTML from which a file is closed and the next one begun."""
        self._directory, self._shard_bytes = directory, shard_bytes
        self._pages: list[Page] = []
        self._rows: list[bytes] = []
        self._sizes = {WARC_FOLDER: 0, JSONL_FOLDER: 0}
        self._numbers = {WARC_FOLDER: 0, JSONL_FOLDER: 0}
        self.documents = 0
        for folder in self._sizes:
            (directory / folder).mkdir(parents=True, exist_ok=True)

    def add(self, document: Document) -> None:
        """Add a document as it was read: HTML (metadata `raw`) becomes a WARC record, text a JSON line."""
        self.documents += 1
        if document.metadata.get(RAW) == "html":
            body = document.text.encode("utf-8", "replace")
            url = str(document.metadata.get("url", ""))
            page = Page(url, "text/html", "utf-8", body, document=document.id, source=document.source)
            fetched = document.metadata.get("date")
            self._pages.append(page if fetched is None else replace(page, date=str(fetched)))
            self._grow(WARC_FOLDER, len(body))
        else:
            row = json.dumps(_row(document), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            self._rows.append(row)
            self._grow(JSONL_FOLDER, len(row))

    def close(self) -> None:
        """Write what is still held."""
        for folder in self._sizes:
            self._flush(folder)

    def _grow(self, folder: str, size: int) -> None:
        self._sizes[folder] += size
        if self._sizes[folder] >= self._shard_bytes:
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        name = f"part-{self._numbers[folder]:05d}"
        if folder == WARC_FOLDER and self._pages:
            write_warc(self._directory / folder / f"{name}.warc.gz", self._pages)
            self._pages = []
        elif folder == JSONL_FOLDER and self._rows:
            packed = gzip.compress(b"".join(self._rows), compresslevel=6, mtime=0)
            (self._directory / folder / f"{name}.jsonl.gz").write_bytes(packed)
            self._rows = []
        else:
            return
        self._numbers[folder] += 1
        self._sizes[folder] = 0


def _row(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "text": document.text,
        "source": document.source,
        "metadata": {key: value for key, value in document.metadata.items() if key != RAW},
    }
