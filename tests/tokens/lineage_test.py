import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trivium.errors import DataError
from trivium.tokens import lineage as tables
from trivium.tokens.lineage import Lineage, LineageWriter, find_documents, spans
from trivium.tokens.shards import ShardWriter, TokenShard


@pytest.fixture
def shard(tmp_path):
    writer = ShardWriter(tmp_path / "s", dtype="int32")
    writer.append(np.arange(1, 7), np.asarray([3, 0, 1, 2]))
    lengths = writer.close()
    lineage = LineageWriter(tmp_path / "l.parquet")
    lineage.append(["a", "b"], [None] * 2, lengths[:2])
    lineage.append(["c", "d"], [None] * 2, lengths[2:])
    lineage.close()
    return TokenShard.open(tmp_path / "s")


def test_table_names_documents_of_its_shard(tmp_path, shard):
    assert list(Lineage(tmp_path / "l.parquet", shard)) == ["a", "b", "c", "d"]


def long_shard(folder, documents, monkeypatch, *, numbered=False):
    """Create a shard of single-token documents, with a table in groups of 100 documents, or a pair without a table."""
    monkeypatch.setattr(tables, "_GROUP_DOCUMENTS", 100)
    writer = ShardWriter(folder / "long", dtype="int32")
    writer.append(np.arange(documents), np.ones(documents, np.int64))
    lengths = writer.close()
    shard = TokenShard.open(folder / "long")
    if numbered:
        return shard.part(7, documents)
    lineage = LineageWriter(folder / "long.parquet")
    lineage.append([f"long/{n}" for n in range(documents)], [None] * documents, lengths)
    lineage.close()
    return shard


@pytest.mark.parametrize("numbered", [False, True])
def test_names_agree_for_index_and_iteration(tmp_path, monkeypatch, numbered):
    monkeypatch.setattr(tables, "MAX_CACHED_GROUPS", 2)
    shard = long_shard(tmp_path, 557, monkeypatch, numbered=numbered)
    lineage = Lineage(tmp_path / "long.parquet", shard)
    first = 7 if numbered else 0
    expected = [f"long/{n}" for n in range(first, 557)]
    assert list(lineage) == expected and len(lineage) == len(expected)
    order = np.random.default_rng(3).permutation(len(expected)).tolist()
    assert [lineage[i] for i in order] == [expected[i] for i in order]
    for beyond in (-1, len(expected)):
        with pytest.raises(IndexError, match=str(beyond)):
            lineage[beyond]
    (found,) = find_documents(tmp_path / "long.parquet", shard, "web", "long/437")
    assert (found.start, found.stop) == (437 - first, 438 - first)


def test_memory_of_lookups_is_bounded(tmp_path, monkeypatch):
    """Names are looked up in any order, sequentially, or by a search."""
    monkeypatch.setattr(tables, "MAX_CACHED_GROUPS", 2)
    most = []
    for documents in (1000, 4000):
        folder = tmp_path / str(documents)
        folder.mkdir()
        shard = long_shard(folder, documents, monkeypatch)
        before, seen = pa.total_allocated_bytes(), []
        lineage = Lineage(folder / "long.parquet", shard)
        for i in np.random.default_rng(3).permutation(documents)[:500].tolist():
            assert lineage[i] == f"long/{i}"
            seen.append(pa.total_allocated_bytes() - before)
        for _ in lineage:
            seen.append(pa.total_allocated_bytes() - before)
        assert find_documents(folder / "long.parquet", shard, "web", f"long/{documents - 1}")
        most.append(max(seen))
    assert 0 < most[1] < 2 * most[0], most  # of four times as many documents; other threads allocate too


@pytest.mark.parametrize("documents", [0, 100])
def test_search_skips_empty_group(tmp_path, monkeypatch, documents):
    """The writer ends a table with an empty group if all groups are full, or if the shard is empty."""
    shard = long_shard(tmp_path, documents, monkeypatch)
    assert find_documents(tmp_path / "long.parquet", shard, "web", "absent") == []
    assert len(list(Lineage(tmp_path / "long.parquet", shard))) == documents


def test_spans_agree_with_counting_tokens(tmp_path):
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.zeros(6, np.uint16), np.asarray([3, 0, 1, 2]))
    writer.close()
    names, starts = list("abcd"), TokenShard.open(tmp_path / "s").document_starts
    owner = [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("d", 0), ("d", 1)]
    for first in range(13):
        for last in range(first + 1, first + 14):
            expected = [(k - first, *owner[k % 6]) for k in range(first, last)]
            found = spans(names, starts, (first, last))
            assert [(s.offset + k, s.document, s.begin + k) for s in found for k in range(s.length)] == expected


def test_table_of_another_shard_is_rejected(tmp_path, shard):
    lineage = LineageWriter(tmp_path / "l.parquet")
    lineage.append(["a", "b"], [None] * 2, np.asarray([3, 3]))
    lineage.close()
    with pytest.raises(DataError, match=r"l\.parquet lists 2 documents"):
        Lineage(tmp_path / "l.parquet", shard)


def test_missing_or_damaged_table_is_rejected_by_name(tmp_path, shard):
    with pytest.raises(DataError, match=r"absent\.parquet"):
        Lineage(tmp_path / "absent.parquet", shard)
    (tmp_path / "l.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"l\.parquet is not readable"):
        Lineage(tmp_path / "l.parquet", shard)


IDS = {"C": None, "C#0": None, "C#1": "C", "C# basics": None, "C#sharp#0": "C#sharp"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("C", ["C", "C#1"]),
        ("C# basics", ["C# basics"]),
        ("C# basics#1", []),
        ("C#0", ["C#0"]),
        ("C#1", ["C#1"]),
        ("C#sharp", ["C#sharp#0"]),
    ],
)
def test_pieces_are_distinguished_from_similar_ids(tmp_path, asked, found):
    lengths = np.asarray([1, 2, 3, 4, 5])
    writer = ShardWriter(tmp_path / "s", dtype="int32")
    writer.append(np.arange(15), lengths)
    writer.close()
    table = tmp_path / "l.parquet"
    lineage = LineageWriter(table)
    lineage.append(list(IDS), list(IDS.values()), lengths)
    lineage.close()
    places = find_documents(table, TokenShard.open(tmp_path / "s"), "web", asked)
    assert [place.document for place in places] == found


def test_table_bytes_do_not_depend_on_append_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_GROUP_DOCUMENTS", 16)
    names, lengths = [f"d{n}" for n in range(100)], np.arange(100)
    for size in (1, 7, 16, 33, 100):
        writer = LineageWriter(tmp_path / f"{size}.parquet")
        for first in range(0, 100, size):
            here = slice(first, first + size)
            writer.append(names[here], [None] * len(names[here]), lengths[here])
        writer.close()
    assert len({path.read_bytes() for path in tmp_path.glob("*.parquet")}) == 1
    table = pq.ParquetFile(tmp_path / "7.parquet")
    assert table.read()["document"].to_pylist() == names and table.num_row_groups == 7
