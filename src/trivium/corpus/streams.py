"""The bytes of a file, unpacked: bounded in memory, checked, and read on after damage.

A gzip file is a row of members, each with a checksum. When one is damaged the next is searched by its first bytes,
so that only the damaged member is lost.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import fsspec
import pyarrow as pa

from trivium.corpus.config import ReadConfig
from trivium.corpus.quarantine import Trouble

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPED = re.compile(
    rb"[\x50-\x5f]\x2a\x4d\x18"
)  # begins a zstd frame that is passed over; pzstd writes some
_MEMBER = b"\x1f\x8b\x08"  # how every gzip member begins: magic and the only method there is
_TRUNCATED = "Truncated"  # how Arrow says that a packed stream is not all there
_LOOKED_AT = 256  # bytes that tell text from packed bytes
_BLOCK_IN, _BLOCK_OUT = 1 << 16, 1 << 18


class Chunk(NamedTuple):
    """Sound bytes; `offset`: where in the stored file they begin or, when packed, the member they come from."""

    data: bytes
    offset: int
    packed: bool = True


class Lost(NamedTuple):
    """Bytes that cannot be had; what comes after them is elsewhere in the data."""

    trouble: Trouble
    detail: str
    offset: int


def open_binary(path: Path | str) -> BinaryIO:
    """A local path, or any URL that fsspec knows, opened for reading; OSError when it cannot be."""
    if isinstance(path, Path):
        return open(path, "rb")
    try:
        return cast(BinaryIO, fsspec.open(path, "rb").open())
    except (ImportError, ValueError) as error:  # a protocol without its package, or none at all
        raise OSError(f"{path}: {error}") from None


def chunks(file: BinaryIO, limits: ReadConfig, name: str = "") -> Iterator[Chunk | Lost]:
    """All bytes of `file` in order, gzip and zstd unpacked, with a Lost for each part that cannot be had.

    Every chunk of a gzip member but its last is given out before the member's checksum is known; the last only
    after it held. What a reader has not completed when a Lost comes must be thrown away. `name` tells gzip where
    the first bytes are damaged.
    """
    try:
        magic = file.read(_LOOKED_AT)
        file.seek(0)
        if magic.startswith(GZIP) or (name.lower().endswith(".gz") and not _is_text(magic)):
            yield from _gzip_chunks(file, limits)
        elif magic.startswith(ZSTD) or _SKIPPED.match(magic):
            yield from _zstd_chunks(file, limits)
        else:
            yield from _plain_chunks(file)
    except OSError as error:
        yield Lost(Trouble.UNREADABLE, error.strerror or str(error), 0)


def unpacked(body: bytes, codec: str, *, longest: int) -> bytes | None:
    """`body` unpacked by gzip, deflate, br or zstd; None when that gives more than `longest` bytes.

    OSError, EOFError or zlib.error when it is damaged or cut.
    """
    if codec in ("br", "zstd"):
        name = "brotli" if codec == "br" else codec
        with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
            data = bytes(stream.read(longest + 1))
        return data if len(data) <= longest else None
    if codec == "gzip":  # a row of members, and nothing but zeros after the last
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as members:
            data = members.read(longest + 1)
        return data if len(data) <= longest else None
    # deflate is zlib by the standard and bare by habit; zlib's first byte says which
    bare = body[:1] and body[0] & 0x0F != 8
    inflate = zlib.decompressobj(wbits=-15 if bare else 15)
    data = inflate.decompress(body, longest + 1)
    if len(data) > longest:
        return None
    if not inflate.eof:
        raise EOFError("the body ends before its compression does")
    return data


def _is_text(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return b"\x00" not in data


def _plain_chunks(file: BinaryIO) -> Iterator[Chunk]:
    offset = 0
    while data := file.read(_BLOCK_OUT):
        yield Chunk(data, offset, packed=False)
        offset += len(data)


def _zstd_chunks(file: BinaryIO, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    size = file.seek(0, io.SEEK_END)
    produced = 0
    try:
        with _zstd_stream(file) as stream:
            while data := bytes(stream.read(_BLOCK_OUT)):
                produced += len(data)
                if produced > max(limits.longest_bytes, limits.unpacked_ratio * size):
                    yield Lost(Trouble.BOMB, f"{size} bytes unpack to more than {produced}", 0)
                    return
                yield Chunk(data, 0)
    except (OSError, pa.ArrowException) as error:
        if _TRUNCATED not in str(error):
            yield Lost(Trouble.PACKED, f"after {produced} bytes unpacked: {error}", 0)
            return
        rest = _zstd_rest(file, produced)
        if rest:  # what there is of a cut file is sound as far as anyone can tell
            yield Chunk(rest, 0)
        yield Lost(Trouble.CUT, f"it breaks off {produced + len(rest)} bytes into its contents", 0)


def _zstd_rest(file: BinaryIO, before: int) -> bytes:
    """What can be unpacked of a cut file after so many bytes. The reading that meets the end loses what it had till
    then, so this one takes a byte at a time."""
    found = bytearray()
    with suppress(OSError, pa.ArrowException), _zstd_stream(file) as stream:
        while before:
            before -= len(stream.read(min(before, _BLOCK_OUT)))
        while data := stream.read(1):
            found += data
    return bytes(found)


def _zstd_stream(file: BinaryIO) -> pa.CompressedInputStream:
    """The contents of a file from its beginning; closing the stream leaves the file open."""
    file.seek(0)
    return pa.CompressedInputStream(pa.PythonFile(_Lent(file), mode="r"), "zstd")


class _Lent(io.RawIOBase):
    """A file, to be read by what closes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """As the file does."""
        return self._file.read(size)


def _gzip_chunks(file: BinaryIO, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    start: int | None = 0
    searching = False  # after damage, until bytes can be read again: further failures are the same loss
    while start is not None:
        end = start
        for found in _member(file, start, limits):
            if isinstance(found, int):
                end = found
            elif isinstance(found, Chunk):
                searching = False
                yield found
            else:
                if not searching:
                    yield found
                searching, end = True, start
        if end == start:
            start = _next_member(file, start + 1)
        else:
            start, stray = _after(file, end)
            if stray and start is not None:
                yield Lost(Trouble.PACKED, "a gzip member does not begin where the one before ends", end)
                searching, start = True, _next_member(file, start)


def _member(file: BinaryIO, start: int, limits: ReadConfig) -> Iterator[Chunk | Lost | int]:
    """The chunks of the member at `start`, then the offset of its end; or a Lost."""
    file.seek(start)
    inflate = zlib.decompressobj(wbits=31)
    consumed = produced = 0
    held = b""
    try:
        while not inflate.eof:
            feed = inflate.unconsumed_tail
            if not feed:
                feed = file.read(_BLOCK_IN)
                consumed += len(feed)
            if not feed and not (more := inflate.decompress(b"", _BLOCK_OUT)):
                if held:  # what there is of a cut file is sound as far as anyone can tell
                    yield Chunk(held, start)
                what = f"its gzip member breaks off {produced} bytes into its contents"
                yield Lost(Trouble.CUT, what, start)
                return
            data = inflate.decompress(feed, _BLOCK_OUT) if feed else more
            produced += len(data)
            if produced > max(limits.longest_bytes, limits.unpacked_ratio * consumed):
                yield Lost(Trouble.BOMB, f"{consumed} bytes unpack to {produced} and more", start)
                return
            if data and held:
                yield Chunk(held, start)
            held = data or held
    except zlib.error as error:
        yield Lost(Trouble.PACKED, str(error), start)
        return
    if held:
        yield Chunk(held, start)
    yield start + consumed - len(inflate.unused_data)


def _after(file: BinaryIO, end: int) -> tuple[int | None, bool]:
    """Where the next member begins after padding, or None at the end; and whether something else stands there."""
    file.seek(end)
    while block := file.read(_BLOCK_IN):
        rest = block.lstrip(b"\x00")
        if rest:
            at = end + len(block) - len(rest)
            file.seek(at)
            return at, file.read(3) != _MEMBER
        end += len(block)
    return None, False


def _next_member(file: BinaryIO, start: int) -> int | None:
    """Where the first bytes of a member stand at or after `start`."""
    file.seek(start)
    before = b""
    while block := file.read(_BLOCK_IN):
        window = before + block
        found = window.find(_MEMBER)
        if found >= 0:
            return start - len(before) + found
        start += len(block)
        before = window[-2:]
    return None
