"""Requests to servers through fsspec: with time limits and retries, and errors that name the URL and hide secrets.

fsspec's file systems differ in what they raise, in what they retry and in how long they wait. Here every request has
the same limits, and every error names the URL. fsspec is imported when it is needed, because listing a run does not.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

from trivium.errors import DataError, MachineError, TriviumError
from trivium.redact import redact

ATTEMPTS = 4
WAIT_SECONDS = 1.0  # before the second attempt; doubled before each later one
REQUEST_SECONDS = 60.0
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "abfs": "adlfs"}
_PACKAGES |= {"az": "adlfs", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "smb": "smbprotocol"}
_SHARED = ("s3", "s3a", "gs", "gcs")  # protocols whose file systems may be used by several threads
_WORTH_REPEATING = (408, 425, 429)  # 4xx codes that ask for another attempt
T = TypeVar("T")


class Truncated(Exception):
    """A server sent fewer bytes than it was asked for."""


def patiently(url: str, call: Callable[[], T], done: str = "read") -> T:
    """Return what a call to a server returns: at most ATTEMPTS times, and REQUEST_SECONDS each time. done: what cannot
    be done with the URL if it fails.

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
                raise DataError(f"{redact(url)} cannot be {done}: {problem}") from None
            last = error
    raise MachineError(
        f"{redact(url)} cannot be {done}: {_told(last)}, after {ATTEMPTS} attempts; nothing that was {done} is lost: "
        f"run the same command again when the server answers"
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
    status = status_of(error)
    if status in (401, 403) or (status is None and isinstance(error, PermissionError)):
        return f"{_told(error)}; give this user access, or credentials in the environment"
    if status == 404 or (status is None and isinstance(error, FileNotFoundError) and error.__cause__ is None):
        return f"{_told(error)}; check the address"
    if isinstance(error, ConnectionError) and "HF_HUB_OFFLINE" in str(error):  # huggingface_hub's own refusal
        return "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set; unset it"
    if isinstance(error, ValueError) and "range requests" in str(error):
        return "the server ignores ranges, and the file is larger than a block; download it, and give its path"
    if status is not None and 400 <= status < 500 and status not in _WORTH_REPEATING:
        return f"{_told(error)}; check the address"
    return ""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error or one of its causes stands for."""
    return next((found for one in _chain(error) if (found := _status(one)) is not None), None)


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


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    protocol = url.partition("://")[0]
    import fsspec

    try:
        if protocol in _SHARED:
            system = _shared(protocol, os.getpid(), json.dumps(fsspec.config.conf.get(protocol), default=str))
            return system, system._strip_protocol(url)
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


@lru_cache(maxsize=8)
def _shared(protocol: str, process: int, settings: str) -> Any:
    """Return the file system of all threads of a process: fsspec makes one for each thread, and each takes a second."""
    import fsspec

    return fsspec.core.url_to_fs(f"{protocol}://")[0]
