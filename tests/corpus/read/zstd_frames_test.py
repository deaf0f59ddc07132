"""Frames of zstd of every kind end where their packer ended them."""

import io

import numpy as np
import pytest
import zstandard

from trivium.corpus.read.streams import ZSTD, begins_frame, frame_end

NOISE = np.random.default_rng(1).bytes(300_000)  # of several blocks that do not get smaller
TEXT = b"".join(b"line %d\n" % n**3 for n in range(30_000))
ZEROS = bytes(400_000)  # whose later blocks are one byte, repeated


def packed(data: bytes, *, dictionary: int | None = None, known: bool = True, **how) -> bytes:
    """A frame; known: it says the size of its contents."""
    words = [b"word %d and more of it " % (n % 97) * 4 for n in range(3000)]
    trained = zstandard.train_dictionary(4096, words, dict_id=dictionary) if dictionary else None
    packer = zstandard.ZstdCompressor(dict_data=trained, **how)
    if known:
        return packer.compress(data)
    parts = packer.compressobj()
    return parts.compress(data) + parts.flush()


def skipped(data: bytes, kind: int = 0) -> bytes:
    return bytes([0x50 + kind]) + b"\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


def repeated(byte: bytes, times: int) -> bytes:
    """A frame of one block that says a byte and how often, written by hand: its size stands in two bytes."""
    return ZSTD + b"\x60" + (times - 256).to_bytes(2, "little") + (times << 3 | 1 << 1 | 1).to_bytes(3, "little") + byte


FRAMES = {
    "small": packed(b"a"),
    "empty": packed(b""),
    "of a size in two bytes": packed(TEXT[:5000]),
    "of a size in four bytes": packed(TEXT),
    "checked": packed(TEXT, write_checksum=True),
    "of an unknown size": packed(TEXT, known=False),
    "of an unknown size, checked": packed(b"a" * 9, known=False, write_checksum=True),
    "without a size": packed(TEXT, write_content_size=False),
    "blocks as they are": packed(NOISE),
    "blocks of one byte": packed(ZEROS),
    "a single block of one byte": repeated(b"x", 1000),
    "a dictionary of one byte": packed(TEXT, dictionary=7),
    "a dictionary of two bytes": packed(TEXT, dictionary=300),
    "a dictionary of four bytes": packed(TEXT, dictionary=70_000),
    "to be skipped": skipped(b"anything"),
    "to be skipped, the last kind": skipped(b"", 15),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_ends_where_the_next_begins_whatever_it_is_made_of(name):
    frame = FRAMES[name]
    for before, behind in ((b"", b""), (b"stray", packed(TEXT)), (FRAMES["checked"], b"stray")):
        file = io.BytesIO(before + frame + behind)
        assert begins_frame(file, len(before))
        assert frame_end(file, len(before)) == len(before) + len(frame)
    assert all(
        zstandard.ZstdDecompressor().decompress(FRAMES[kind]) == data
        for kind, data in (("a single block of one byte", b"x" * 1000), ("blocks of one byte", ZEROS))
    )


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_breaks_off_ends_behind_the_file_or_is_none(name):
    """It never ends within what is there: then the next would be looked for in the midst of it."""
    frame = FRAMES[name]
    for cut in {*range(1, min(40, len(frame))), len(frame) // 2, len(frame) - 1} - {0}:
        end = frame_end(io.BytesIO(frame[:cut]), 0)
        assert end is None or end > cut


def test_what_no_packer_writes_is_no_frame():
    sizes = (1 << 17) + 1 << 3 | 1
    for wrong in (
        b"",
        b"text",
        ZSTD,
        ZSTD + b"\x28" + FRAMES["small"][5:],  # a bit that must be nought
        ZSTD
        + b"\x60\x00\x00"
        + (8 << 3 | 3 << 1 | 1).to_bytes(3, "little")
        + bytes(8),  # a kind of block without a name
        ZSTD + b"\x60\x00\x00" + sizes.to_bytes(3, "little") + bytes(200_000),  # a block that is too long
    ):
        assert frame_end(io.BytesIO(wrong), 0) is None, wrong[:12]
    assert not begins_frame(io.BytesIO(b"\x28\xb5\x2f\xfc" + TEXT), 0)
