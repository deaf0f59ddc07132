"""The contents of zstd frames that refer further back than Arrow reads, as `zstd --long` writes them."""

from typing import BinaryIO

import zstandard

from trivium.corpus.read.zstd_frames import window_bytes

_ARROWS_WINDOW = 1 << 27  # the largest that Arrow reads
_LARGEST_WINDOW = 1 << 31  # that zstd reads at all (--long=31)


def is_wide(file: BinaryIO, start: int) -> bool:
    """Whether a frame begins at this byte whose window is too wide for Arrow."""
    return window_bytes(file, start) > _ARROWS_WINDOW


class WideFrame:
    """Reads one frame. Memory holds as much of its contents as its window is wide, if there is so much."""

    def __init__(self, frame: BinaryIO, *, whole: bool) -> None:
        """frame: its bytes and no more; whole: all of them are there."""
        self._whole = whole
        unpacker = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._stream = unpacker.stream_reader(frame, closefd=False)

    def __enter__(self) -> "WideFrame":
        return self

    def __exit__(self, *_: object) -> None:
        """What it reads from stays open."""

    def read(self, size: int) -> bytes:
        """As Arrow's streams do, up to the frame's end; OSError where it is damaged, or ends too early."""
        try:
            data = self._stream.read(size)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        if not data and not self._whole:
            raise OSError("Truncated zstd frame")
        return data
