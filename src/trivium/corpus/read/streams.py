"""The bytes of a file, unpacked: bounded in memory, checked, and read on after damage.

A gzip file is a row of members, each with a checksum, and a zstd file one of frames. When one is damaged the next is
searched, so that only the damaged one is lost; but a file can be made in which thousands begin within one another, each
to be unpacked to the end of all, so what is unpacked in vain has a limit.
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import fsspec
import pyarrow as pa

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.zstd import MAGIC, SKIPPED, WideFrame, begins_frame, frame_end, is_wide
from trivium.untrusted import open_regular

GZIP, ZSTD = b"\x1f\x8b", MAGIC
_MEMBER = b"\x1f\x8b\x08"  # how every gzip member begins: magic and the only method there is
_TRUNCATED = "Truncated"  # how Arrow says that a packed stream is not all there
_LOOKED_AT = 256  # bytes that tell text from packed bytes
_BLOCK_IN, _BLOCK_OUT = 1 << 16, 1 << 18
_LEAST = 64  # bytes that are copied in the time of a call


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
    """A local regular file, or any URL that fsspec knows, opened for reading. Raises OSError where it cannot be."""
    if isinstance(path, Path):
        return open_regular(path)
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
        elif magic.startswith(ZSTD) or SKIPPED.match(magic):
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
    most = _most_in_vain(size)
    try:
        yield from _zstd_frames(cast(BinaryIO, _Counted(file, most)), size, limits)
    except _InVain:
        yield Lost(Trouble.BOMB, f"more than {most} bytes were read in vain, of frames in frames", 0)


class _InVain(Exception):
    """More was read of a file than any sound one needs."""


class _Counted:
    """A file of which so many bytes may be read, what is read again counted again."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._left = file, left
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        """As the file does; the three bytes before a block count as what it costs to get them."""
        if self._left < 0:
            raise _InVain(size)
        data = self._file.read(size)
        self._left -= max(len(data), _LEAST)
        return data


def _zstd_frames(file: BinaryIO, size: int, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    start: int | None = 0
    produced = 0
    searching = False  # after damage, until bytes can be read again: further failures are the same loss
    while start is not None:
        given = 0  # of what comes from `start` on
        try:
            with _zstd_stream(file, start) as stream:
                while data := bytes(stream.read(_BLOCK_OUT)):
                    given, produced, searching = given + len(data), produced + len(data), False
                    if produced > max(limits.longest_bytes, limits.unpacked_ratio * size):
                        yield Lost(Trouble.BOMB, f"{size} bytes unpack to more than {produced}", 0)
                        return
                    yield Chunk(data, start)
        except (OSError, pa.ArrowException) as error:
            what = str(error)
        else:
            if not is_wide(file, start):  # which is read alone, others to the file's end
                return
            start = _next_frame(file, start, size)
            continue
        broken = _first_broken(file, start, size, given)
        if broken.start > start and is_wide(file, broken.start):
            produced += len(broken.before)
            yield Chunk(broken.before, start)
            start = broken.start
            continue
        follows = _next_frame(file, broken.start, size)
        rest = broken.before
        if (
            follows is None and _TRUNCATED in what
        ):  # what there is of a cut file is sound as far as anyone can tell
            rest += _zstd_rest(file, broken.start, broken.given)
        if rest:
            produced, searching = produced + len(rest), False
            yield Chunk(rest, start)
        if follows is None and _TRUNCATED in what:
            yield Lost(Trouble.CUT, f"it breaks off {produced} bytes into its contents", broken.start)
        elif not searching:
            lost = Lost(Trouble.PACKED, f"its zstd frame cannot be unpacked ({what})", broken.start)
            yield _told_where(lost, follows)
        searching, start = True, follows


class _Broken(NamedTuple):
    """The first frame that cannot be unpacked: where it begins, what of it was given out already, and the contents
    of those before it that were not."""

    start: int
    given: int
    before: bytes


def _first_broken(file: BinaryIO, start: int, size: int, given: int) -> _Broken:
    """Looks for it from the frame at `start` on, of which so many bytes were given out. The reading that meets the
    damage loses what it had till then, so frames are unpacked once more, each alone. A frame that Arrow cannot read is
    broken to it."""
    before = bytearray()
    while not is_wide(file, start) and (end := frame_end(file, start)) is not None and end <= size:
        fresh, seen = bytearray(), 0
        try:
            with _zstd_stream(file, start, end) as stream:
                while data := stream.read(_BLOCK_OUT):
                    fresh += data[max(0, given - seen) :]
                    seen += len(data)
        except (OSError, pa.ArrowException):
            break
        before += fresh
        start, given = end, max(0, given - seen)
    return _Broken(start, given, bytes(before))


def _next_frame(file: BinaryIO, start: int, size: int) -> int | None:
    """Where the frame behind a broken one begins: where that one ends, if its sizes are sound, else the next place
    that looks like one."""
    end = frame_end(file, start)
    if end == size:
        return None
    if end is not None and end < size and begins_frame(file, end):
        return end
    found = _find(file, start + 1, ZSTD)
    while found is not None and frame_end(file, found) is None:
        found = _find(file, found + 1, ZSTD)
    return found


def _zstd_rest(file: BinaryIO, start: int, given: int) -> bytes:
    """What can be unpacked of a cut frame after so many bytes. The reading that meets the end loses what it had till
    then, so this one takes a byte at a time."""
    found = bytearray()
    with suppress(OSError, pa.ArrowException), _zstd_stream(file, start) as stream:
        while given:
            given -= len(stream.read(min(given, _BLOCK_OUT)))
        while data := stream.read(1):
            found += data
    return bytes(found)


def _zstd_stream(file: BinaryIO, start: int, end: int | None = None) -> pa.CompressedInputStream | WideFrame:
    """The contents of the frames from one byte of a file to another, or of the one at `start` where its window is too
    wide for Arrow; closing the stream leaves the file open."""
    if is_wide(file, start):
        end, size = frame_end(file, start), file.seek(0, io.SEEK_END)
        file.seek(start)
        frame = cast(BinaryIO, _Lent(file, None if end is None else end - start))
        return WideFrame(frame, whole=end is not None and end <= size)
    file.seek(start)
    lent = _Lent(file, None if end is None else end - start)
    return pa.CompressedInputStream(pa.PythonFile(lent, mode="r"), "zstd")


class _Lent(io.RawIOBase):
    """A file, to be read by what closes it, for so many bytes (None: to its end)."""

    def __init__(self, file: BinaryIO, left: int | None) -> None:
        self._file, self._left = file, left

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """As the file does."""
        if self._left is None:
            return self._file.read(size)
        data = self._file.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data


def _gzip_chunks(file: BinaryIO, limits: ReadConfig) -> Iterator[Chunk | Lost]:
    most, vain = _most_in_vain(file.seek(0, io.SEEK_END)), 0
    start: int | None = 0
    lost: Lost | None = (
        None  # told when bytes can be read again: further failures till then are the same loss
    )
    while start is not None:
        end, given = start, 0
        for found in _member(file, start, limits):
            if isinstance(found, int):
                end = found
            elif isinstance(found, Lost):
                lost, end = lost or found, start
            else:
                if lost is not None:
                    yield _told_where(lost, start)
                    lost = None
                given += len(found.data)
                yield found
        if end == start:
            vain += file.tell() - start + given
            if vain > most:
                lost = Lost(Trouble.BOMB, f"{vain} bytes were unpacked in vain, of members in members", start)
            start = _find(file, start + 1, _MEMBER) if vain <= most else None
        else:
            start, stray = _after(file, end)
            if stray and start is not None:
                what = "a gzip member does not begin where the one before ends"
                lost, start = lost or Lost(Trouble.PACKED, what, end), _find(file, start, _MEMBER)
    if lost is not None:
        yield _told_where(lost, None)


def _most_in_vain(size: int) -> int:
    """Bytes that may be read and unpacked of a damaged file of this size and then come to nothing: no damage that was
    not made for it costs so many."""
    return max(32 << 20, 200 * size)


def _told_where(lost: Lost, follows: int | None) -> Lost:
    """The loss with where reading goes on; that nothing follows goes without saying where a file breaks off."""
    if follows is None and lost.trouble == Trouble.CUT:
        return lost
    on = "nothing behind it can be" if follows is None else f"what begins at byte {follows} is"
    return lost._replace(detail=f"{lost.detail}; {on} read")


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


def _find(file: BinaryIO, start: int, mark: bytes) -> int | None:
    """Where these bytes stand at or after `start`."""
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
