"""Hostile and damaged Parquet files take bounded memory and are reported by name."""

import json
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus.read.hostile_parquet import HOSTILE
from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Damage, Document, Trouble
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.read.parquet_headers import declared, footer_problem
from trivium.corpus.read.read import read_any
from trivium.errors import DataError
from trivium.provenance import file_sha256


@pytest.mark.parametrize("typed", [True, False])
def test_dictionary_rows_count_with_their_decoded_size(tmp_path, typed):
    path = tmp_path / "bomb.parquet"
    texts = pa.array(["0123456789" * 1000] * 2000)
    pq.write_table(pa.table({"text": texts.dictionary_encode() if typed else texts}), path)
    limits = ReadConfig(longest_bytes=100_000, unpacked_ratio=5)
    *documents, last = read_any(path, source="s", limits=limits)
    assert isinstance(last, Damage) and last.trouble == Trouble.BOMB
    assert len(documents) + last.records == 2000
    assert sum(one.text_bytes for one in documents) <= 100_000
    assert not any(isinstance(one, Damage) for one in read_any(path, source="s", limits=ReadConfig()))


@contextmanager
def arrow_memory():
    """A pool that knows how much Arrow held at most inside."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_parquet_takes_bounded_memory_and_rows(tmp_path, name):
    path = tmp_path / "a.parquet"
    path.write_bytes(HOSTILE[name]())
    limits = ReadConfig(longest_bytes=1 << 20)
    with arrow_memory() as pool:
        *_, last = items = list(islice(read_any(path, source="s", limits=limits), 50_000))
    assert isinstance(last, Damage) and last.trouble in (Trouble.BOMB, Trouble.PARQUET)
    assert len(items) < 20_000 and pool.max_memory() < 8 << 20
    assert sum(one.records if isinstance(one, Damage) else 1 for one in items) < 2**31


def test_page_headers_of_ordinary_parquet_declare_what_arrow_reads(tmp_path):
    """The files cover every compression and page version, dictionaries, nulls, lists, and many small pages."""
    rows = [
        {"text": f"text {n % 7} " * (n % 50), "tags": [str(n)] * (n % 3), "n": n if n % 5 else None} for n in range(600)
    ]
    table = pa.Table.from_pylist(rows)
    options = [{"compression": packing} for packing in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")]
    options += [{"data_page_version": "2.0"}, {"use_dictionary": False}, {"data_page_size": 256}]
    options += [{"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}]
    options += [{"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}}]
    options += [{"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}]
    for number, option in enumerate(options):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=200, **option)
        with path.open("rb") as file:
            assert footer_problem(file) == ""
            opened = pq.ParquetFile(file)
            for group in range(3):
                told = declared(file, opened, group, {0, 1, 2})
                chunks = [opened.metadata.row_group(group).column(n) for n in range(3)]
                footer = sum(chunk.total_uncompressed_size for chunk in chunks)
                assert told.rows == 200 and footer // 2 < told.unpacked <= footer
                assert told.beside < 20 * footer
        documents = list(read_any(path, source="s"))
        assert [one.text for one in documents] == [row["text"] for row in rows]
        assert documents[8].metadata == {"n": 8}


@pytest.mark.parametrize("content", [HOSTILE["columns in columns"], lambda: b"no Parquet", lambda: b""])
def test_forged_shard_is_refused_by_name(tmp_path, content):
    write_documents(tmp_path, [Document("a", "text", "s")])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (shard,) = manifest["shards"]
    (tmp_path / shard["file"]).write_bytes(content())
    shard["sha256"] = file_sha256(tmp_path / shard["file"])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"{shard['file']} is not readable Parquet: .*; curate the corpus again"):
        list(read_documents(tmp_path))


def test_damaged_bytes_of_parquet_never_crash_the_reader(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pa.table({"text": ["a", "b"] * 50, "metadata": [{"tags": ["x", "y"]}] * 100})
    pq.write_table(rows, path, store_schema=False, write_statistics=False)
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert list(read_any(path, source="s")), place
