import numpy as np
import pyarrow.parquet as pq
import pytest

from trivium.errors import DataError
from trivium.tokens import lineage as tables
from trivium.tokens.lineage import LineageWriter, find_documents, read_lineage, spans
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


def test_the_table_names_the_documents_of_its_shard(tmp_path, shard):
    assert read_lineage(tmp_path / "l.parquet", shard) == ["a", "b", "c", "d"]


def test_spans_agree_with_counting_token_by_token():
    names, starts = list("abcd"), np.asarray([0, 3, 3, 4, 6])
    owner = [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("d", 0), ("d", 1)]
    for first in range(13):
        for last in range(first + 1, first + 14):
            expected = [(k - first, *owner[k % 6]) for k in range(first, last)]
            found = spans(names, starts, (first, last))
            assert [
                (s.offset + k, s.document, s.begin + k) for s in found for k in range(s.length)
            ] == expected


def test_a_table_of_another_shard_is_refused(tmp_path, shard):
    lineage = LineageWriter(tmp_path / "l.parquet")
    lineage.append(["a", "b"], [None] * 2, np.asarray([3, 3]))
    lineage.close()
    with pytest.raises(DataError, match=r"l\.parquet lists 2 documents"):
        read_lineage(tmp_path / "l.parquet", shard)


def test_a_missing_or_damaged_table_is_refused_by_name(tmp_path, shard):
    with pytest.raises(DataError, match=r"absent\.parquet"):
        read_lineage(tmp_path / "absent.parquet", shard)
    (tmp_path / "l.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"l\.parquet is not readable"):
        read_lineage(tmp_path / "l.parquet", shard)


IDS = {"C": None, "C#0": None, "C#1": "C", "C# basics": None, "C#sharp#0": "C#sharp"}


@pytest.mark.parametrize("older", [False, True])
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
def test_the_pieces_of_a_document_are_told_from_others_whose_id_has_the_mark(tmp_path, asked, found, older):
    lengths = np.asarray([1, 2, 3, 4, 5])
    writer = ShardWriter(tmp_path / "s", dtype="int32")
    writer.append(np.arange(15), lengths)
    writer.close()
    table = tmp_path / "l.parquet"
    lineage = LineageWriter(table)
    lineage.append(list(IDS), list(IDS.values()), lengths)
    lineage.close()
    if older:  # which did not say what is a piece: an id that ends as a piece's is taken for one's
        pq.write_table(pq.read_table(table).drop_columns(["of"]), table)
        found = ["C", "C#0", "C#1"] if asked == "C" else found
    places = find_documents(table, TokenShard.open(tmp_path / "s"), "web", asked)
    assert [place.document for place in places] == found


def test_the_bytes_of_a_table_do_not_depend_on_how_its_documents_come(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_GROUP", 16)
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
