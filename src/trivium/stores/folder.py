"""Upload a folder to a URL, and download it: files are stored in parts named by their sha256, the manifest last.

    URL/parts/SHA256   bytes of a file, at most PART_BYTES
    URL/folder.json    files: name -> the sha256 and the bytes of its parts, in order; written last, as one object

A file that has grown since it was published sends what was appended, and an interrupted upload sends what is missing.
"""

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, ClassVar, Literal

from pydantic import Field

from trivium.config import Config, NotNegative, build
from trivium.errors import ConfigError, DataError
from trivium.stores.remote import Remote
from trivium.untrusted import open_regular, parse_json

FOLDER = "folder.json"
PARTS = "parts"
PART_BYTES = 64 << 20  # most bytes of a part, which is in memory while it is sent or read


class _Part(Config):
    remedy: ClassVar[str] = "every published folder has it"

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: NotNegative


class _Folder(Config):
    remedy: ClassVar[str] = _Part.remedy

    format: Literal["trivium-folder-1"]
    files: dict[str, tuple[_Part, ...]]


def upload(folder: Path, url: Remote, names: Iterable[str]) -> int:
    """Publish these files of a folder, and return how many bytes were sent: those that the store lacks.

    A part of the previous state is not sent again if the store has it in its size. Other parts that are there, as an
    interrupted upload left them, are read to compare them. Until the manifest is written the store has the previous
    state. Files that are not in `names` are removed from it.
    """
    before, sent, files = _published(url), 0, {}
    held = (url / PARTS).sizes()
    for name in names:
        parts, known = [], before.get(name, ())
        with open_regular(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            for part in _known_start(file, size, known):
                if held.get(part.sha256) != part.bytes:
                    break
                parts.append(part)
            file.seek(at := sum(part.bytes for part in parts))
            while at < size and (data := file.read(min(PART_BYTES, size - at))):  # others may append meanwhile
                part = _Part(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
                if not (url / PARTS / part.sha256).contains(data):
                    (url / PARTS / part.sha256).write(data)
                    sent += part.bytes
                parts.append(part)
                at += part.bytes
        files[name] = tuple(parts)
    described = {name: [part.model_dump() for part in parts] for name, parts in files.items()}
    (url / FOLDER).write(json.dumps({"format": "trivium-folder-1", "files": described}, sort_keys=True).encode())
    used = {part.sha256 for parts in files.values() for part in parts}
    (url / PARTS).delete({part.sha256 for parts in before.values() for part in parts} - used)
    return sent


def _known_start(file: BinaryIO, size: int, known: tuple[_Part, ...]) -> Iterator[_Part]:
    """Yield the published parts with which a file still begins."""
    at = 0
    for part in known:
        at += part.bytes
        if at > size or hashlib.sha256(file.read(part.bytes)).hexdigest() != part.sha256:
            return
        yield part


def download(url: Remote, folder: Path, names: Iterable[str] | None = None) -> int:
    """Download files (None: all) of a published folder, and return how many bytes were read. A file gets its name when
    it is complete and every part has its sha256. A file that is here in its size is not read again.

    Raises DataError if there is no such folder, a part is damaged, or a file cannot have its name here.
    """
    files, total = _published(url), 0
    if not files:
        raise DataError(f"{url} holds no published folder ({FOLDER} is missing); `trivium data push` writes one")
    for name in files if names is None else names:
        try:
            total += _bring(url, folder / name, files[name])
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise
            raise DataError(
                f"{name!r} of {url} cannot be written in {folder}: {error.strerror}; name an empty folder, or publish "
                f"the file under another name"
            ) from None
    return total


def _bring(url: Remote, path: Path, parts: tuple[_Part, ...]) -> int:
    """Download a file unless it is here, and return how many bytes were read."""
    if path.is_file() and _is_same(path, parts):
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        with open(partial, "xb") as file:
            for part in parts:
                file.write(_read(url / PARTS / part.sha256, path.name))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return sum(part.bytes for part in parts)


def _read(place: Remote, name: str) -> bytes:
    """Return the content of a part of a file, which is named by its sha256."""
    remedy = "publish the folder again from where it is whole: that sends what is missing"
    try:
        data = place.read()
    except FileNotFoundError:
        raise DataError(f"{place} of {name} is missing; {remedy}") from None
    if hashlib.sha256(data).hexdigest() != place.name:
        raise DataError(f"{place} of {name} does not have its sha256, so it is damaged; delete it, and {remedy}")
    return data


def published_files(url: Remote) -> dict[str, int]:
    """Return the bytes of the files of a published folder by name; empty if there is none."""
    return {name: sum(part.bytes for part in parts) for name, parts in _published(url).items()}


def continues(path: Path, url: Remote) -> bool:
    """Whether a file begins with the file of its name in a published folder, or is equal to it."""
    parts = _published(url).get(path.name, ())
    return not parts or (path.is_file() and _begins_with(path, parts))


def _is_same(path: Path, parts: tuple[_Part, ...]) -> bool:
    return path.stat().st_size == sum(part.bytes for part in parts) and _begins_with(path, parts)


def _begins_with(path: Path, parts: tuple[_Part, ...]) -> bool:
    with open_regular(path) as file:
        return len(list(_known_start(file, os.fstat(file.fileno()).st_size, parts))) == len(parts)


def _published(url: Remote) -> dict[str, tuple[_Part, ...]]:
    remedy = "name another URL, or delete this object and publish the folder again"
    try:
        found = build(_Folder, parse_json((url / FOLDER).read()))
    except FileNotFoundError:
        return {}
    except (ValueError, ConfigError) as error:
        raise DataError(f"{url / FOLDER} is damaged ({error}); {remedy}") from None
    for name in found.files:
        pure = PurePosixPath(name)
        is_plain = name == str(pure) != "." and not any(character in name for character in "\\\0")
        if not is_plain or pure.is_absolute() or ".." in pure.parts:
            raise DataError(
                f"{url / FOLDER} has a file {name!r}, and a name must be a path in the folder, so it is no folder of "
                f"trivium; {remedy}"
            )
    return found.files
