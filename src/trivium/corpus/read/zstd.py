"""Where the frames of a zstd file begin and end, by the sizes stated in them; nothing is unpacked (RFC 8878)."""

import re
from typing import BinaryIO

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # begins a frame that is passed over; pzstd writes some
_HEADER = 18  # bytes that a frame's header has at most, or a bit more
_LONGEST_BLOCK = 1 << 17
_REPEATED, _RESERVED = 1, 3  # kinds of blocks


def begins_frame(file: BinaryIO, at: int) -> bool:
    """Return whether a frame begins at a byte of the file."""
    file.seek(at)
    head = file.read(len(MAGIC))
    return head == MAGIC or SKIPPED.match(head) is not None


def frame_end(file: BinaryIO, start: int) -> int | None:
    """Where the frame at `start` ends by its own account, which may be behind the file's end; None: it is none."""
    file.seek(start)
    head = file.read(_HEADER)
    if SKIPPED.match(head) and len(head) >= 8:
        return start + 8 + int.from_bytes(head[4:8], "little")
    if not head.startswith(MAGIC) or len(head) < 5 or head[4] & 0b1000:
        return None
    about = head[4]
    alone, checked = about >> 5 & 1, about >> 2 & 1  # a window's size is not stated; a checksum is
    dictionary, content = (0, 1, 2, 4)[about & 3], (alone, 2, 4, 8)[about >> 6]
    at, last = start + 5 + (1 - alone) + dictionary + content, False
    while not last:
        file.seek(at)
        header = file.read(3)
        if len(header) < 3:
            return at + 3
        number = int.from_bytes(header, "little")
        last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _RESERVED or size > _LONGEST_BLOCK:
            return None
        at += 3 + (1 if kind == _REPEATED else size)
    return at + 4 * checked
