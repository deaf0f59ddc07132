"""The bytes of a file, unpacked in bounded memory and with checksums verified, also behind damage.

A gzip file is a sequence of members and a zstd file a sequence of frames, each with its own checksum. Behind a damaged
one, reading continues with the next. A file can be constructed in which thousands begin inside one another, each to be
unpacked to the end of all, so the bytes that may be read in total are limited.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import zstandard

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.remote import open_remote
from trivium.untrusted import open_regular

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MEMBER = b"\x1f\x8b\x08"  # how every gzip member begins: magic and the only compression method
_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # begins a skippable frame of zstd; pzstd writes some
_MAGIC_BYTES = 256  # number of bytes that distinguish text from compressed data
_BLOCK_IN, _BLOCK_OUT = 1 << 16, 1 << 18
_PADDING_BYTES = 1 << 10  # read at once behind a member, where usually the next one begins
_MIN_BYTES_COUNTED = 64  # for a read of fewer bytes, which takes as long as copying this many
_MAX_ZSTD_WINDOW_BYTES = 1 << 31  # zstd --long=31
_ZSTD_HEADER_BYTES = 18  # at most
_MAX_ZSTD_BLOCK_BYTES = 1 << 17
_ZSTD_REPEATED, _ZSTD_RESERVED = 1, 3  # kinds of blocks


class Chunk(NamedTuple):
    """Sound bytes. offset: where in the stored file they begin or, if packed, where their member begins."""

    data: bytes
    offset: int
    packed: bool = True


class Lost(NamedTuple):
    """Bytes that cannot be read. What comes after them does not continue what came before."""

    trouble: Trouble
    detail: str
    offset: int


def open_binary(path: Path | str) -> BinaryIO:
    """Open a local regular file, or a URL for fsspec, for reading.

    Raises OSError if a local file cannot be opened, and DataError or MachineError for a remote one: what a server fails
    to send must not be taken for damage of the file.
    """
    return open_regular(path) if isinstance(path, Path) else open_remote(path)


def chunks(file: BinaryIO, limits: ReadConfig, name: str = "") -> Iterator[Chunk | Lost]:
    """Yield all bytes of `file` in order, gzip and zstd unpacked, with a Lost for each part that cannot be read.

    All chunks of a member but the last are yielded before its checksum is verified, so the reader must discard what it
    has not completed when a Lost comes. name: identifies a gzip file whose first bytes are damaged.
    """
    try:
        magic = file.read(_MAGIC_BYTES)
        file.seek(0)
        if magic.startswith(GZIP) or (name.lower().endswith(".gz") and not _is_text(magic)):
            yield from _packed_chunks(file, _GZIP, limits)
        elif magic.startswith(ZSTD) or _SKIPPED.match(magic):
            yield from _packed_chunks(file, _ZSTD, limits)
        else:
            offset = 0
            while data := file.read(_BLOCK_OUT):
                yield Chunk(data, offset, packed=False)
                offset += len(data)
    except OSError as error:
        yield Lost(Trouble.UNREADABLE, error.strerror or str(error), 0)


def unpacked(body: bytes, codec: str, *, longest: int) -> bytes | None:
    """Unpack `body` by gzip, deflate, br or zstd. Return None if that gives more than `longest` bytes.

    Raises OSError, EOFError or zlib.error if it is damaged or truncated.
    """
    if codec in ("br", "zstd"):
        with pa.CompressedInputStream(pa.BufferReader(body), "brotli" if codec == "br" else codec) as stream:
            data = bytes(stream.read(longest + 1))
    elif codec == "gzip":  # several members, and nothing but zeros after the last
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as members:
            data = members.read(longest + 1)
    else:
        # By the standard, deflate is in zlib's format, but some servers send it bare. The first byte tells which.
        bare = body[:1] and body[0] & 0x0F != 8
        inflate = zlib.decompressobj(wbits=-15 if bare else 15)
        data = inflate.decompress(body, longest + 1)
        if len(data) <= longest and not inflate.eof:
            raise EOFError("the body ends before its compression does")
    return data if len(data) <= longest else None


def _is_text(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return b"\x00" not in data


class _Codec(NamedTuple):
    """A format of packed files, which are sequences of members with a checksum each.

    name: of a member. begins: whether a member begins at a byte of a file. after_damage: where a member may begin
    behind a damaged one. feed_bytes: packed bytes that are unpacked at once.
    """

    name: str
    open: Callable[[], Any]
    begins: Callable[[BinaryIO, int], bool]
    after_damage: Callable[[BinaryIO, int], int | None]
    feed_bytes: int


def _begins_member(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    return file.read(len(_MEMBER)) == _MEMBER


class _ZstdFrame:
    """Unpacks a zstd frame with the interface of zlib's objects, but consumes all of its input."""

    unconsumed_tail = b""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).decompressobj()

    def decompress(self, data: bytes, _: int) -> bytes:
        return self._frame.decompress(data) if data else b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data


def begins_frame(file: BinaryIO, at: int) -> bool:
    """Return whether a zstd frame begins at a byte of the file."""
    file.seek(at)
    head = file.read(len(ZSTD))
    return head == ZSTD or _SKIPPED.match(head) is not None


def frame_end(file: BinaryIO, start: int) -> int | None:
    """Return where the zstd frame at `start` ends according to its own sizes (RFC 8878), or None if it is no frame.

    The end may lie behind the end of the file. Nothing is unpacked.
    """
    file.seek(start)
    head = file.read(_ZSTD_HEADER_BYTES)
    if _SKIPPED.match(head) and len(head) >= 8:
        return start + 8 + int.from_bytes(head[4:8], "little")
    if not head.startswith(ZSTD) or len(head) < 5 or head[4] & 0b1000:
        return None
    descriptor = head[4]
    single_segment, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    dictionary_bytes, size_bytes = (0, 1, 2, 4)[descriptor & 3], (single_segment, 2, 4, 8)[descriptor >> 6]
    at, last = start + 5 + (1 - single_segment) + dictionary_bytes + size_bytes, False
    while not last:
        file.seek(at)
        header = file.read(3)
        if len(header) < 3:
            return at + 3
        number = int.from_bytes(header, "little")
        last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _ZSTD_RESERVED or size > _MAX_ZSTD_BLOCK_BYTES:
            return None
        at += 3 + (1 if kind == _ZSTD_REPEATED else size)
    return at + 4 * has_checksum


def _find_frame(file: BinaryIO, start: int) -> int | None:
    """Return the end of the frame at `start` if its sizes are sound, else the next place that looks like a frame."""
    end, size = frame_end(file, start), file.seek(0, io.SEEK_END)
    if end == size:
        return None
    if end is not None and end < size and begins_frame(file, end):
        return end
    found = _find(file, start + 1, ZSTD)
    while found is not None and frame_end(file, found) is None:
        found = _find(file, found + 1, ZSTD)
    return found


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


_GZIP = _Codec(
    "gzip member",
    lambda: zlib.decompressobj(wbits=31),
    _begins_member,
    lambda file, start: _find(file, start + 1, _MEMBER),
    feed_bytes=1 << 16,
)
# A block of 4 bytes can unpack to 128 KiB, so 4 KiB are at most 128 MiB.
_ZSTD = _Codec("zstd frame", _ZstdFrame, begins_frame, _find_frame, feed_bytes=1 << 12)


class _TooManyReads(Exception):
    """More bytes were read than any file needs that was not constructed to cost time."""


class _Counted:
    """A file of which a limited number of bytes may be read. Bytes that are read again count again."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._left = file, left
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.spend(max(len(data), _MIN_BYTES_COUNTED))
        return data

    def spend(self, size: int) -> None:
        """Count bytes that were unpacked and then discarded."""
        self._left -= size
        if self._left < 0:
            raise _TooManyReads


def _packed_chunks(stored: BinaryIO, codec: _Codec, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    most = max(32 << 20, 200 * stored.seek(0, io.SEEK_END))
    counted = _Counted(stored, most)
    try:
        yield from _members(counted, cast(BinaryIO, counted), codec, limits)
    except _TooManyReads:
        yield Lost(Trouble.BOMB, f"more than {most} bytes were read in vain, of {codec.name}s in {codec.name}s", 0)


def _members(counted: _Counted, file: BinaryIO, codec: _Codec, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    start: int | None = 0
    # A loss is reported when bytes can be read again. Further failures until then belong to the same loss.
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
    """Add to a loss where reading continues. At the end of a truncated file, nothing can follow."""
    if follows is None and lost.trouble == Trouble.CUT:
        return lost
    on = "nothing behind it can be" if follows is None else f"what begins at byte {follows} is"
    return lost._replace(detail=f"{lost.detail}; {on} read")


def _member(file: BinaryIO, codec: _Codec, start: int, limits: ReadConfig) -> Iterator[Chunk | Lost | int]:
    """Yield the chunks of the member at `start`, and then the offset of its end, or a Lost."""
    file.seek(start)
    inflate = codec.open()
    consumed = produced = 0
    held = b""  # the last chunk, which is yielded once the checksum is verified
    try:
        while not inflate.eof:
            feed = inflate.unconsumed_tail
            if not feed:
                feed = file.read(codec.feed_bytes)
                consumed += len(feed)
            data = inflate.decompress(feed, _BLOCK_OUT)
            if not feed and not data:
                if held:  # Nothing contradicts the contents of a truncated file.
                    yield Chunk(held, start)
                yield Lost(Trouble.CUT, f"its {codec.name} breaks off {produced} bytes into its contents", start)
                return
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
