import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import DataError
from trivium.tokens import shards
from trivium.tokens.shards import ShardWriter, TokenShard

CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}
DOCUMENTS = [[5, 6, 7], [], [65000], list(range(40))]


def write(prefix, documents, dtype="uint16"):
    writer = ShardWriter(prefix, dtype=dtype)
    for document in documents:
        writer.append(*columns([document]))
    writer.close()


def columns(documents):
    """Return concatenated ids and the length of each document."""
    return np.asarray(sum(documents, []), np.int64), np.asarray([len(d) for d in documents], np.int64)


def reference_write(prefix, sequences, dtype, marks):
    """Write the published format one field at a time, independently of the code under test."""
    item = np.dtype(dtype).itemsize
    letter = {"uint8": "B", "uint16": "H", "int32": "i", "int64": "q"}[dtype]
    with open(f"{prefix}.bin", "wb") as file:
        for s in sequences:
            file.write(struct.pack(f"<{len(s)}{letter}", *s))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype]))
        file.write(struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(marks)))
        for s in sequences:
            file.write(struct.pack("<i", len(s)))
        at = 0
        for s in sequences:
            file.write(struct.pack("<q", at))
            at += len(s) * item
        for m in marks:
            file.write(struct.pack("<q", m))


def reference_read(prefix):
    with open(f"{prefix}.idx", "rb") as file:
        take = lambda form: struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))  # noqa: E731
        assert file.read(9) == b"MMIDIDX\x00\x00"
        (version,), (code,), (sequences,), (marks,) = take("Q"), take("B"), take("Q"), take("Q")
        assert version == 1
        lengths, pointers, documents = take(f"{sequences}i"), take(f"{sequences}q"), take(f"{marks}q")
        assert file.read() == b""
    dtype = np.dtype(next(n for n, c in CODES.items() if c == code))
    with open(f"{prefix}.bin", "rb") as file:
        data = file.read()
    texts = [np.frombuffer(data, dtype, n, p).tolist() for n, p in zip(lengths, pointers, strict=True)]
    return dtype.name, texts, list(documents)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_independent_reader_reads_our_shards(tmp_path, dtype):
    write(tmp_path / "s", DOCUMENTS, dtype)
    assert reference_read(tmp_path / "s") == (dtype, DOCUMENTS, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_independently_written_shards_are_read(tmp_path, dtype):
    reference_write(tmp_path / "s", DOCUMENTS, dtype, marks=[0, 1, 2, 3, 4])
    shard = TokenShard.open(tmp_path / "s")
    assert [shard[i].tolist() for i in range(len(shard))] == DOCUMENTS
    assert shard.tokens.tolist() == sum(DOCUMENTS, [])
    assert shard.tokens.dtype == dtype
    assert shard.document_starts[:].tolist() == [0, 3, 3, 4, 44]


def test_document_of_several_sequences_is_one_document(tmp_path):
    reference_write(tmp_path / "s", DOCUMENTS, "int32", marks=[0, 1, 3, 4])
    shard = TokenShard.open(tmp_path / "s")
    assert [shard[i].tolist() for i in range(len(shard))] == [[5, 6, 7], [65000], list(range(40))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 65535), max_size=30), max_size=20), st.integers(1, 7))
def test_documents_round_trip_in_any_chunks(tmp_path_factory, documents, size):
    prefix = tmp_path_factory.mktemp("s") / "with.a.dot"
    writer = ShardWriter(prefix, dtype="uint16")
    for k in range(0, len(documents), size):
        writer.append(*columns(documents[k : k + size]))
    assert writer.close().tolist() == [len(d) for d in documents]
    shard = TokenShard.open(prefix)
    assert [shard[i].tolist() for i in range(len(shard))] == documents


@pytest.mark.parametrize("token", [65536, -1])
def test_id_outside_dtype_is_rejected(tmp_path, token):
    with pytest.raises(DataError, match=f"{token}.*uint16"):
        write(tmp_path / "s", [[1], [token]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.integers(0, 12), max_size=8),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_search_agrees_with_numpy(tmp_path_factory, lengths, marks, first, count):
    """Cases: documents of several sequences and of none, empty sequences, and parts of a shard."""
    prefix = tmp_path_factory.mktemp("s") / "s"
    marks = sorted(min(mark, len(lengths)) for mark in marks)
    reference_write(prefix, [[1] * n for n in lengths], "uint16", marks=[0, *marks, len(lengths)])
    part = TokenShard.open(prefix).part(first, count)
    whole = np.cumsum([0, *lengths])[[0, *marks, len(lengths)]]
    begin = min(first, len(marks) + 1)
    expected = whole[begin : min(begin + count, len(marks) + 1) + 1]
    expected = expected - expected[0]
    starts = part.document_starts
    assert len(starts) == len(expected) and starts[:].tolist() == expected.tolist()
    assert [starts[n] for n in range(-len(starts), len(starts))] == [*expected, *expected]
    for token in range(int(expected[-1]) + 2):
        for side in ("left", "right"):
            assert starts.search(token, side=side) == np.searchsorted(expected, token, side=side)


def test_memory_of_starts_is_bounded(tmp_path):
    documents = 1_000_000
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.zeros(documents, np.uint16), np.ones(documents, np.int64))
    writer.close()
    shard = TokenShard.mapped(tmp_path / "s").part(7, documents)
    tracemalloc.start()
    starts = shard.document_starts
    for token in range(0, len(starts), 99_991):
        assert starts[token] == token and starts.search(token, side="right") == token + 1
        assert starts[token : token + 3].tolist() == [token, token + 1, token + 2]
        assert shard[token].tolist() == [0]
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_open_shard_keeps_no_index_or_file(tmp_path):
    """Every rank opens every source, so only a reader of documents may use memory for the index."""
    documents = 300_000
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.arange(documents) % 7, np.ones(documents, np.int64))
    writer.close()
    size = (tmp_path / "s.idx").stat().st_size
    tracemalloc.start()
    files = len([*Path("/proc/self/fd").iterdir()])
    whole = TokenShard.open(tmp_path / "s")
    part = whole.part(1000, 200_000)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < size // 100 and peak < size // 2
    assert len([*Path("/proc/self/fd").iterdir()]) == files + 1, "that of the ids alone"
    assert (len(part), part.tokens[:3].tolist()) == (200_000, [6, 0, 1])
    assert [part.document_starts[n] for n in (0, 1, -1)] == [0, 1, 200_000]


def test_parts_of_parts_are_the_named_documents(tmp_path):
    reference_write(tmp_path / "s", DOCUMENTS, "int32", marks=[0, 1, 3, 3, 4])
    shard = TokenShard.open(tmp_path / "s")
    whole = [shard[i].tolist() for i in range(len(shard))]
    assert whole == [[5, 6, 7], [65000], [], list(range(40))]
    for first in range(6):
        for count in range(6):
            part = shard.part(first, count)
            assert [part[i].tolist() for i in range(len(part))] == whole[first : first + count]
            assert part.document_starts[:].tolist() == np.cumsum([0, *map(len, whole[first : first + count])]).tolist()
            again = part.part(1, 2)
            assert [again[i].tolist() for i in range(len(again))] == whole[first : first + count][1:3]


@pytest.mark.parametrize("place", [3, shards._BLOCK_ENTRIES - 1, shards._BLOCK_ENTRIES, 150_000])
@pytest.mark.parametrize("what", ["lengths", "pointers", "marks"])
def test_damage_anywhere_in_long_index_is_detected(tmp_path, what, place):
    documents = 150_001
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.zeros(documents, np.int64), np.ones(documents, np.int64))
    writer.close()
    data = bytearray((tmp_path / "s.idx").read_bytes())
    at = {"lengths": 34 + 4 * place, "pointers": 34 + 4 * documents + 8 * place}
    at["marks"] = 34 + 12 * documents + 8 * place
    data[at[what] : at[what] + 4] = struct.pack("<i", {"lengths": -1, "pointers": 7, "marks": 1 << 30}[what])
    (tmp_path / "s.idx").write_bytes(data)
    says = {"lengths": f"sequence {place} has length -1", "pointers": f"sequence {place} is said to start at byte 7"}
    with pytest.raises(DataError, match=says.get(what, "marks must rise")):
        TokenShard.open(tmp_path / "s")


def patched(at, value):
    return lambda data: data[:at] + value + data[at + len(value) :]


LENGTHS = 34  # start of the arrays: magic 9, version 8, code 1, and two counts of 8 bytes
DAMAGE = {
    "magic": (patched(0, b"X"), "starts with"),
    "version": (patched(9, struct.pack("<Q", 2)), "version 2"),
    "dtype code": (patched(17, b"\x09"), "dtype code 9"),
    "a float dtype code": (patched(17, b"\x06"), "dtype code 6"),
    "another dtype": (patched(17, b"\x04"), "start at byte|bytes"),
    "too many sequences": (patched(18, struct.pack("<Q", 5)), "5 sequences"),
    "absurdly many sequences": (patched(18, b"\xff" * 8), "sequences"),
    "too few marks": (patched(26, struct.pack("<Q", 1)), "1 document marks"),
    "negative length": (patched(LENGTHS + 4, struct.pack("<i", -1)), "length -1"),
    "wrong length": (patched(LENGTHS, struct.pack("<i", 4)), "start at byte 6"),
    "wrong last length": (patched(LENGTHS + 12, struct.pack("<i", 41)), "88 bytes"),
    "wrong pointer": (patched(LENGTHS + 16 + 8, struct.pack("<q", 7)), "start at byte 7"),
    "falling marks": (patched(LENGTHS + 48 + 8, struct.pack("<q", 3)), "marks must rise"),
    "first mark": (patched(LENGTHS + 48, struct.pack("<q", 1)), "marks must rise"),
    "last mark": (patched(LENGTHS + 48 + 32, struct.pack("<q", 3)), "marks must rise"),
    "truncated": (lambda data: data[:-1], "bytes"),
    "cut in the header": (lambda data: data[:20], "header"),
    "longer": (lambda data: data + b"\0", "bytes"),
    "empty": (lambda data: b"", "starts with"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_index_is_rejected_naming_file_and_cause(tmp_path, damage):
    write(tmp_path / "s", DOCUMENTS)
    change, message = DAMAGE[damage]
    path = tmp_path / "s.idx"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        TokenShard.open(tmp_path / "s")
    assert str(tmp_path / "s") in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 34 + 12 * 4 + 8 * 5 - 8), st.binary(min_size=8, max_size=8))
def test_unchecked_index_gives_own_tokens_or_an_error(tmp_path_factory, place, damage):
    prefix = tmp_path_factory.mktemp("s") / "s"
    write(prefix, DOCUMENTS)
    path = prefix.with_name("s.idx")
    path.write_bytes(patched(place, damage)(path.read_bytes()))
    try:
        shard = TokenShard.mapped(prefix)
        assert shard.tokens.nbytes == prefix.with_name("s.bin").stat().st_size
        for part in (shard, shard.part(1, 2)):
            assert all(len(part[i]) <= len(part.tokens) for i in range(min(len(part), 10)))
    except DataError as error:
        assert str(prefix) in str(error)


def test_mapped_shard_does_not_read_the_index(tmp_path):
    documents = 150_001
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.arange(documents) % 7, np.ones(documents, np.int64))
    writer.close()
    path = tmp_path / "s.idx"
    path.write_bytes(patched(34 + 4 * 3, struct.pack("<i", -1))(path.read_bytes()))
    shard = TokenShard.mapped(tmp_path / "s")
    assert (len(shard), len(shard.tokens)) == (documents, documents)
    with pytest.raises(DataError, match="sequence 3 has length -1"):
        shards.check_index(path)


@pytest.mark.parametrize("change", [lambda d: d[:-2], lambda d: d + b"\0\0", lambda d: b""])
def test_missing_or_surplus_ids_are_rejected(tmp_path, change):
    write(tmp_path / "s", DOCUMENTS)
    path = tmp_path / "s.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"s\.bin has \d+ bytes.*44 tokens of 2 bytes = 88"):
        TokenShard.open(tmp_path / "s")


@pytest.mark.parametrize("name", ["s.idx", "s.bin"])
def test_missing_file_is_rejected_by_name(tmp_path, name):
    write(tmp_path / "s", DOCUMENTS)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        TokenShard.open(tmp_path / "s")


def test_lengths_that_do_not_fit_ids_are_rejected(tmp_path):
    with pytest.raises(DataError, match="3 ids for documents of 2"):
        ShardWriter(tmp_path / "s", dtype="uint16").append(np.arange(3), np.asarray([1, 1]))


def test_overlong_document_is_rejected(tmp_path):
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    with pytest.raises(DataError, match="a document has 2147483648 tokens, more than the 2147483647 of an index"):
        writer.append(np.zeros(0, np.uint32), np.array([5, 2**31]))


def test_shard_without_index_is_incomplete(tmp_path):
    ShardWriter(tmp_path / "s", dtype="uint16").append(*columns([[1, 2]]))
    with pytest.raises(DataError, match=r"s\.idx"):
        TokenShard.open(tmp_path / "s")
