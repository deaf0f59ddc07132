"""The bytes of a file, unpacked in bounded memory and with checksums, also behind damage.

A gzip file is a row of members, each with a checksum, and a zstd file a row of frames. When one is damaged, the next
one is searched, so that only the damaged one is lost. Since a file can be made in which thousands begin within one
another, each to be unpacked to the end of all, the bytes that may be read in all are limited.
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import fsspec
import pyarrow as pa
import zstandard

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.zstd import MAGIC, SKIPPED, begins_frame, frame_end
from trivium.untrusted import open_regular

GZIP, ZSTD = b"\x1f\x8b", MAGIC
_MEMBER = b"\x1f\x8b\x08"  # how every gzip member begins: magic and the only method there is
_LOOKED_AT = 256  # bytes by which text is told from packed bytes
_BLOCK_IN, _BLOCK_OUT = 1 << 16, 1 << 18
_PADDING_BYTES = 1 << 10  # read at once: behind most members stands the next one
_LEAST_BYTES_COUNTED = 64  # for a call that reads fewer bytes: it takes as long as copying so many
_LARGEST_ZSTD_WINDOW = 1 << 31  # that zstd reads at all (--long=31)


class Chunk(NamedTuple):
    """Sound bytes. offset: where in the stored file they begin or, if packed, where their member begins."""

    data: bytes
    offset: int
    packed: bool = True


class Lost(NamedTuple):
    """Bytes that cannot be read. What comes after them is elsewhere in the data."""

    trouble: Trouble
    detail: str
    offset: int


def open_binary(path: Path | str) -> BinaryIO:
    """Open a local regular file, or a URL for fsspec, for reading. Raises OSError if that fails."""
    if isinstance(path, Path):
        return open_regular(path)
    try:
        return cast(BinaryIO, fsspec.open(path, "rb").open())
    except (ImportError, ValueError) as error:  # a protocol without its package, or none at all
        raise OSError(f"{path}: {error}") from None


def chunks(file: BinaryIO, limits: ReadConfig, name: str = "") -> Iterator[Chunk | Lost]:
    """Yield all bytes of `file` in order, gzip and zstd unpacked, with a Lost for each part that cannot be read.

    All chunks of a member but the last are yielded before its checksum is known. What a reader has not completed when a
    Lost comes must be thrown away. name: tells that a file is gzip if its first bytes are damaged.
    """
    try:
        magic = file.read(_LOOKED_AT)
        file.seek(0)
        if magic.startswith(GZIP) or (name.lower().endswith(".gz") and not _is_text(magic)):
            yield from _packed_chunks(file, _GZIP, limits)
        elif magic.startswith(ZSTD) or SKIPPED.match(magic):
            yield from _packed_chunks(file, _ZSTD, limits)
        else:
            yield from _plain_chunks(file)
    except OSError as error:
        yield Lost(Trouble.UNREADABLE, error.strerror or str(error), 0)


def unpacked(body: bytes, codec: str, *, longest: int) -> bytes | None:
    """Unpack `body` by gzip, deflate, br or zstd. Return None if that gives more than `longest` bytes.

    Raises OSError, EOFError or zlib.error if it is damaged or cut.
    """
    if codec in ("br", "zstd"):
        name = "brotli" if codec == "br" else codec
        with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
            data = bytes(stream.read(longest + 1))
        return data if len(data) <= longest else None
    if codec == "gzip":  # several members, and nothing but zeros after the last
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as members:
            data = members.read(longest + 1)
        return data if len(data) <= longest else None
    # By the standard, deflate is in zlib's format, but servers also send it bare. The first byte says which.
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


class _Codec(NamedTuple):
    """A format of packed files, which are a row of members, each with its own end and checksum.

    name: of a member. begins: whether a member begins at a byte of a file. after_damage: where the member behind a
    damaged one begins, or at least may begin. feed_bytes: packed bytes that are unpacked at once.
    """

    name: str
    open: Callable[[], Any]
    begins: Callable[[BinaryIO, int], bool]
    after_damage: Callable[[BinaryIO, int], int | None]
    feed_bytes: int


class _ZstdFrame:
    """Unpacks a zstd frame as zlib's objects do, but takes all that it is fed."""

    unconsumed_tail = b""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW).decompressobj()

    def decompress(self, data: bytes, _: int) -> bytes:
        return self._frame.decompress(data) if data else b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data


def _begins_member(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    return file.read(len(_MEMBER)) == _MEMBER


def _find_member(file: BinaryIO, start: int) -> int | None:
    return _find(file, start + 1, _MEMBER)


def _find_frame(file: BinaryIO, start: int) -> int | None:
    """Return the end of the frame at `start`, if its sizes are sound, else the next place that looks like a frame."""
    end, size = frame_end(file, start), file.seek(0, io.SEEK_END)
    if end == size:
        return None
    if end is not None and end < size and begins_frame(file, end):
        return end
    found = _find(file, start + 1, ZSTD)
    while found is not None and frame_end(file, found) is None:
        found = _find(file, found + 1, ZSTD)
    return found


_GZIP = _Codec("gzip member", lambda: zlib.decompressobj(wbits=31), _begins_member, _find_member, feed_bytes=1 << 16)
# A block of 4 bytes can unpack to 128 KiB, so 4 KiB are at most 128 MiB.
_ZSTD = _Codec("zstd frame", _ZstdFrame, begins_frame, _find_frame, feed_bytes=1 << 12)


class _TooManyReads(Exception):
    """More was read of a file than any file needs that was not made for it."""


class _Counted:
    """A file of which so many bytes may be read. Bytes that are read again count again."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._left = file, left
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        """Read as the file does; even the three bytes before a block count as what a call costs."""
        data = self._file.read(size)
        self.spend(max(len(data), _LEAST_BYTES_COUNTED))
        return data

    def spend(self, size: int) -> None:
        """Count bytes that were unpacked and then thrown away."""
        self._left -= size
        if self._left < 0:
            raise _TooManyReads


def _packed_chunks(file: BinaryIO, codec: _Codec, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    size = file.seek(0, io.SEEK_END)
    # Bytes that may be read and unpacked in all: only a file made for it costs so much.
    most = max(32 << 20, 200 * size)
    try:
        yield from _members(_Counted(file, most), codec, limits)
    except _TooManyReads:
        yield Lost(Trouble.BOMB, f"more than {most} bytes were read in vain, of {codec.name}s in {codec.name}s", 0)


def _members(counted: _Counted, codec: _Codec, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    file = cast(BinaryIO, counted)
    start: int | None = 0
    # A loss is reported when bytes can be read again: until then, further failures are the same loss.
    lost: Lost | None = None
    while start is not None:
        end, given = start, 0
        for found in _member(file, codec, start, limits):
            if isinstance(found, int):
                end = found
            elif isinstance(found, Lost):
                lost, end = lost or found, start
            else:
                if lost is not None:
                    yield _with_next(lost, start)
                    lost = None
                given += len(found.data)
                yield found
        if end == start:
            counted.spend(given)
            start = codec.after_damage(file, start)
            continue
        start = _after_padding(file, end)
        if start is not None and not codec.begins(file, start):
            what = f"a {codec.name} does not begin where the one before ends"
            lost, start = lost or Lost(Trouble.PACKED, what, end), codec.after_damage(file, start)
    if lost is not None:
        yield _with_next(lost, None)


def _with_next(lost: Lost, follows: int | None) -> Lost:
    """Add where reading continues to a loss. If a file breaks off, it goes without saying that nothing follows."""
    if follows is None and lost.trouble == Trouble.CUT:
        return lost
    on = "nothing behind it can be" if follows is None else f"what begins at byte {follows} is"
    return lost._replace(detail=f"{lost.detail}; {on} read")


def _member(file: BinaryIO, codec: _Codec, start: int, limits: ReadConfig) -> Iterator[Chunk | Lost | int]:
    """Yield the chunks of the member at `start`, and then the offset of its end, or a Lost."""
    file.seek(start)
    inflate = codec.open()
    consumed = produced = 0
    held = b""
    try:
        while not inflate.eof:
            feed = inflate.unconsumed_tail
            if not feed:
                feed = file.read(codec.feed_bytes)
                consumed += len(feed)
            if not feed and not (more := inflate.decompress(b"", _BLOCK_OUT)):
                if held:  # as far as anyone can tell, the contents of a cut file are sound
                    yield Chunk(held, start)
                what = f"its {codec.name} breaks off {produced} bytes into its contents"
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
    except (zlib.error, zstandard.ZstdError) as error:
        yield Lost(Trouble.PACKED, f"its {codec.name} cannot be unpacked ({error})", start)
        return
    if held:
        yield Chunk(held, start)
    yield start + consumed - len(inflate.unused_data)


def _after_padding(file: BinaryIO, end: int) -> int | None:
    """Return the place of the first byte at or after `end` that is not 0, or None if there is none."""
    file.seek(end)
    while block := file.read(_PADDING_BYTES):
        rest = block.lstrip(b"\x00")
        if rest:
            return end + len(block) - len(rest)
        end += len(block)
    return None


def _find(file: BinaryIO, start: int, mark: bytes) -> int | None:
    """Return the first place of `mark` at or after `start`, or None."""
    file.seek(start)
    before = b""
    while block := file.read(_BLOCK_IN):
        window = before + block
        found = window.find(mark)
        if found >= 0:
            return start - len(before) + found
        start += len(block)
        before = window[1 - len(mark) :]
    return None
