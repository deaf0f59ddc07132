"""Read files at URLs through fsspec: in blocks, with time limits and retries, and only while they stay unchanged.

fsspec's file systems differ in what they raise, in what they retry and in how long they wait. Here every request has
the same limits, a short answer is an error, and every error names the URL.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.spec import AbstractBufferedFile

from trivium.errors import DataError, MachineError, TriviumError
from trivium.redact import redact
from trivium.units import format_bytes

ATTEMPTS = 4
WAIT_SECONDS = 1.0  # before the second attempt; doubled before each later one
REQUEST_SECONDS = 60.0
BLOCK_BYTES = 4 << 20
_MOST_BLOCKS = 4  # blocks of a file in memory
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "abfs": "adlfs"}
_PACKAGES |= {"az": "adlfs", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "smb": "smbprotocol"}
# Fields by which stores identify the contents of a file; times only where there is no tag.
_TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "blob_id", "oid")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_WORTH_REPEATING = (408, 425, 429)  # 4xx codes that ask for another attempt
_CARD = "README.md"  # the description of a data set on the Hub
Info = Mapping[str, Any]
Mark = Sequence[str]  # identifies the contents of a remote file
T = TypeVar("T")


def remote_files(url: str) -> dict[str, Info]:
    """Return the metadata of the file at a URL, or of all files below it, by their URLs.

    Raises MachineError if the package for the protocol is missing or the server does not answer, and DataError if
    nothing is there or it may not be read.
    """
    system, path = _system(url)

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
    system, path = _system(url)

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
    system, path = _system(url)
    size = patiently(url, lambda: system.info(path))["size"]
    if size is None:
        raise DataError(f"{redact(url)}: the server does not tell its size; download the file, and give its path")
    return cast(BinaryIO, _RemoteFile(system, path, url, int(size)))


class _RemoteFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of which fsspec keeps the blocks that were read last."""

    def __init__(self, system: Any, path: str, url: str, size: int) -> None:
        self._url = url
        self._source: Any = None
        cache = {"maxblocks": _MOST_BLOCKS}
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
                raise _Truncated(f"it sent {len(data)} of the {end - start} bytes from byte {start}")
            self._source = source
            return data

        return patiently(self._url, whole)


class _Truncated(Exception):
    """A server sent fewer bytes than it was asked for."""


def patiently(url: str, call: Callable[[], T]) -> T:
    """Return what a call to a server returns: at most ATTEMPTS times, and REQUEST_SECONDS each time.

    Raises DataError for what repeating cannot change, and MachineError after the last attempt.
    """
    last: BaseException | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT_SECONDS * 2 ** (attempt - 1))
        try:
            return _within(REQUEST_SECONDS, call)
        except TriviumError:
            raise
        except Exception as error:  # aiohttp, botocore and httpx have errors of their own, which are no OSError
            if problem := _permanent(error):
                raise DataError(f"{redact(url)} cannot be read: {problem}") from None
            last = error
    raise MachineError(
        f"{redact(url)} cannot be read: {_told(last)}, after {ATTEMPTS} attempts; nothing that was read is lost: run "
        f"the same command again when the server answers"
    )


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return what the call returns, or raise TimeoutError. It runs in a thread, which is left behind if it stalls."""
    outcome: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def run() -> None:
        try:
            outcome.put((True, call()))
        except BaseException as error:
            outcome.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        succeeded, value = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if not succeeded:
        raise value
    return cast(T, value)


def _permanent(error: BaseException) -> str:
    """Return why another attempt would fail as well, and the remedy, or "" if it might not."""
    status = next((found for one in _chain(error) if (found := _status(one)) is not None), None)
    if status in (401, 403) or (status is None and isinstance(error, PermissionError)):
        return f"{_told(error)}; give this user access, or credentials in the environment"
    if status == 404 or (status is None and isinstance(error, FileNotFoundError) and error.__cause__ is None):
        return f"{_told(error)}; check the address"
    if isinstance(error, ValueError) and "range requests" in str(error):
        limit = format_bytes(BLOCK_BYTES)
        return f"the server ignores ranges, and the file is larger than {limit}; download it, and give its path"
    if status is not None and 400 <= status < 500 and status not in _WORTH_REPEATING:
        return f"{_told(error)}; check the address"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error of aiohttp, botocore or httpx stands for."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    found = getattr(error, "status", None) or getattr(response, "status_code", response)
    return found if isinstance(found, int) else None


def _told(error: BaseException | None) -> str:
    """Return the first line of the deepest cause of an error, with its HTTP status."""
    deepest = list(_chain(error))[-1]
    status = _status(deepest)
    text = getattr(deepest, "message", "") or str(deepest)  # aiohttp's text repeats the status and the URL
    line = redact(str(text).strip().partition("\n")[0]) or type(deepest).__name__
    return f"HTTP {status}: {line}" if status else line


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
        return system, path
    except ImportError:
        package = _PACKAGES.get(protocol, f"fsspec's package for {protocol}")
        raise MachineError(
            f"{redact(url)}: {protocol}:// needs the package {package}; run `pip install {package}`, or download the "
            f"files"
        ) from None
    except (ValueError, OSError) as error:
        raise DataError(f"{redact(url)} cannot be read: {error}; check the address") from None
