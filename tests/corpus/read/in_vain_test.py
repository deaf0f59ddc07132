"""The cost of reading a hostile file is bounded by its size, however its parts are nested.

Without these limits, reading each of these files takes hours; only pytest-timeout measures that.
"""

import io
import struct

import pytest

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.streams import ZSTD, Chunk, Lost, chunks
from trivium.corpus.read.warc_frames import Frame, frames

pytestmark = pytest.mark.timeout(100)
LIMITS = ReadConfig()
HEAD = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: %d\r\n\r\n"


def stored(size: int) -> bytes:
    """Return the header of a stored (uncompressed) block of deflate."""
    return b"\x00" + struct.pack("<HH", size, size ^ 0xFFFF)


# Every 20 bytes begins a member. Its blocks overlap those of all others and extend to the end of the file.
MEMBERS = (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + stored(65520) + stored(65515)) * 100_000
# Every 3 bytes begins a member whose header does not end.
HEADERS = b"\x1f\x8b\x08" * 500_000
# Every 12 bytes begins a frame of blocks of 9 bytes, which does not end.
FRAMES = (ZSTD + b"\x00\x50" + (9 << 3).to_bytes(3, "little") + b"abc") * 50_000


@pytest.mark.broad
@pytest.mark.parametrize("made", [MEMBERS, HEADERS, FRAMES], ids=["members", "headers", "frames"])
def test_a_file_of_members_within_members_is_given_up_as_a_bomb(made):
    found = list(chunks(io.BytesIO(made), LIMITS))
    assert isinstance(found[-1], Lost)
    assert found[-1].trouble == Trouble.BOMB
    assert "in vain" in found[-1].detail


@pytest.mark.broad
def test_records_within_a_record_of_a_wrong_length_are_each_read_once():
    inner = (HEAD % 0 + b"\r\n\r\n") * 100_000
    made = HEAD % (len(inner) - 100) + inner
    found = list(frames(chunks(io.BytesIO(made), LIMITS), LIMITS))
    assert sum(isinstance(item, Frame) for item in found) == 100_000


# Every 17 bytes begins a record whose head extends over all others. The first kind has no empty line; the second has
# one, before which the head is damaged.
HEADS = [b"\nWARC/1.0\nWARC-" * 400_000, (b"\nWARC/1.0\nWARC-a:" * 3500 + b"\nnofield\n\n") * 60]


@pytest.mark.broad
@pytest.mark.parametrize("made", HEADS, ids=["endless", "damaged"])
def test_heads_within_heads_are_each_read_once(made):
    made = HEAD % 10 + made + HEAD % 3 + b"abc"
    found = list(frames(chunks(io.BytesIO(made), LIMITS), LIMITS))
    assert [item.block for item in found if isinstance(item, Frame)] == [b"abc"]


@pytest.mark.broad
@pytest.mark.parametrize("end", [b"\r\nContent-Length: 99999\r\n\r\n", b""], ids=["whole", "endless"])
def test_a_head_before_many_chunks_is_not_read_with_each(end):
    head = b"WARC/1.0" + b"\na:" * 21_000 + end
    parts = [Chunk(head, 0), *(Chunk(b"a", at) for at in range(1, 30_000))]
    (found,) = frames(parts, LIMITS)
    assert isinstance(found, Lost)
