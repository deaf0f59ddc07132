"""Read files at URLs through fsspec: in blocks, with time limits and retries, and only while they stay unchanged.

A short answer is an error.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

from fsspec.spec import AbstractBufferedFile

from trivium.errors import DataError
from trivium.redact import redact
from trivium.stores.requests import Truncated, file_system, patiently

BLOCK_BYTES = 4 << 20
_MAX_BLOCKS_IN_MEMORY = 4  # of one file
# Fields by which stores identify the contents of a file; times only where there is no tag.
_TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "blob_id", "oid")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_CARD = "README.md"  # the description of a data set on the Hub
Info = Mapping[str, Any]
Mark = Sequence[str]  # identifies the contents of a remote file


def remote_files(url: str) -> dict[str, Info]:
    """Return the metadata of the file at a URL, or of all files below it, by their URLs.

    Raises MachineError if the package for the protocol is missing or the server does not answer, and DataError if
    nothing is there or it may not be read.
    """
    system, path = file_system(url)

    def listed() -> dict[str, Info]:
        system.invalidate_cache()
        if url.startswith(("http://", "https://")):  # folders have no metadata
            names = list(system.find(path)) if url.endswith("/") else [path]
            return {name: system.info(name) for name in names}
        info = system.info(path)
        found = system.find(path, detail=True) if info["type"] == "directory" else {path: info}
        if not found:
            raise FileNotFoundError("nothing is stored there")
        return cast(dict[str, Info], found)

    infos = patiently(url, listed)
    if url.startswith("hf://"):
        infos = {name: info for name, info in infos.items() if not name.endswith(f"/{_CARD}") or name == path}
    return {url.rstrip("/") + name.removeprefix(path.rstrip("/")): info for name, info in infos.items()}


def mark_of(info: Info) -> Mark:
    """Return the size of a remote file, and its tag or time, which identify its contents without reading it."""
    name = next((name for name in (*_TAGS, *_TIMES) if info.get(name) is not None), None)
    value = info.get(name) if name else None
    if isinstance(value, float):  # listings of some stores have seconds where the metadata of one file has a date
        value = datetime.fromtimestamp(value, UTC)
    return [f"size {info.get('size')}", *([f"{name} {value}".replace('"', "")] if name else [])]


def refuse_changed(url: str, mark: Mark, remedy: str) -> None:
    """Raise DataError unless a remote file is the one that had this mark."""
    system, path = file_system(url)

    def now() -> Mark:
        system.invalidate_cache()
        return mark_of(system.info(path))

    if (found := patiently(url, now)) != list(mark):
        raise changed(url, mark, found, remedy)


def changed(url: str, before: Mark, now: Mark, remedy: str) -> DataError:
    """Return the error of a remote file that is another one by now."""
    return DataError(
        f"{redact(url)} changed since it was first read ({', '.join(before)} -> {', '.join(now) or 'gone'}); {remedy}"
    )


def open_remote(url: str) -> BinaryIO:
    """Open the file at a URL. Memory stays within a few blocks, whatever its size. Raises as `remote_files`."""
    system, path = file_system(url)
    size = patiently(url, lambda: system.info(path))["size"]
    if size is None:
        raise DataError(f"{redact(url)}: the server does not tell its size; download the file, and give its path")
    return cast(BinaryIO, _RemoteFile(system, path, url, int(size)))


class _RemoteFile(AbstractBufferedFile):
    """A file of which fsspec keeps the blocks that were read last."""

    def __init__(self, system: Any, path: str, url: str, size: int) -> None:
        self._url = url
        self._source: Any = None
        cache = {"maxblocks": _MAX_BLOCKS_IN_MEMORY}
        super().__init__(
            system, path, "rb", block_size=BLOCK_BYTES, cache_type="blockcache", cache_options=cache, size=size
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)  # the last block is requested in full

        def whole() -> bytes:
            # Taken away while it is used, because a request that stalls is left behind in its thread.
            source, self._source = self._source, None
            if source is None:
                source = self.fs.open(self.path, "rb", block_size=BLOCK_BYTES, cache_type="none", size=self.size)
            source.seek(start)
            data = bytes(source.read(end - start))
            if len(data) != end - start:
                raise Truncated(f"it sent {len(data)} of the {end - start} bytes from byte {start}")
            self._source = source
            return data

        return patiently(self._url, whole)
