"""Laws of reading a user's files: every document is read or its loss is reported."""

import gzip
import json
import os
from datetime import datetime, timedelta
from decimal import Decimal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from trivium.corpus.config import CurateConfig, ReadConfig
from trivium.corpus.document import Damage, Document, Trouble
from trivium.corpus.pipeline import run_steps
from trivium.corpus.read.files import Input, input_files, relative_name
from trivium.corpus.read.lines import Line, row_of
from trivium.corpus.read.read import read_any
from trivium.corpus.read.warc import Page, write_warc
from trivium.errors import DataError


def test_json_lines_give_text_id_source_and_metadata(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "text": "seven", "source": "x", "metadata": {"k": 1}}\n\n{"content": "eight"}\n')
    seven, eight = read_any(path, source="a")
    assert seven == Document("7", "seven", "x", {"k": 1})
    assert (eight.text, eight.source) == ("eight", "a")


def test_other_fields_of_a_row_become_metadata(tmp_path):
    row = {"text": "A text.", "id": 7, "url": "http://a", "license": "CC0", "raw": "html", "n": 2, "ok": True}
    said = {"url": "http://a", "license": "CC0", "n": 2, "ok": True}
    lines = [row | {"meta": {"set": ["a"]}}, row | {"metadata": {"n": 3}}, row | {"metadata": "of its own"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(read_any(tmp_path / "a.jsonl", source="s"))
    assert [d.metadata for d in found] == [
        said | {"meta": {"set": ["a"]}},
        said | {"n": 3},
        said | {"metadata": "of its own"},
    ]
    days = pa.array([19_000], pa.date32()), pa.array([2**62], pa.timestamp("us"))
    columns = {name: [value] for name, value in row.items()} | {"day": days[0], "never": days[1]}
    moment = datetime(2021, 1, 15, 7, 30)
    columns |= {f"at_{unit}": pa.array([moment], pa.timestamp(unit, "Europe/Berlin")) for unit in ("ms", "us")}
    columns |= {
        "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
        "zone": pa.array([0], pa.timestamp("ms", "?")),
    }
    said |= {"at_ms": "2021-01-15 07:30:00.000Z", "at_us": "2021-01-15 07:30:00.000000Z", "price": "1.50"}
    said |= {"zone": "1970-01-01 00:00:00.000Z"}
    pq.write_table(pa.table(columns | {"vector": [[1.0, 2.0]], "packed": [b"\xff"]}), tmp_path / "a.parquet")
    (document,) = read_any(tmp_path / "a.parquet", source="s")
    assert document.metadata.pop("never").startswith("<value out of range")
    assert document.metadata == said | {"day": "2022-01-08"}
    assert json.loads(json.dumps(document.metadata)) == document.metadata


@pytest.mark.parametrize("names", [["text", "text"], ["text", "id", "id"], ["text", "metadata", "metadata"]])
def test_two_columns_of_one_name_are_refused(tmp_path, names):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * len(names), names=names), tmp_path / "a.parquet")
    (damage,) = read_any(tmp_path / "a.parquet", source="s")
    assert damage.trouble == Trouble.PARQUET
    assert f"several columns are called {names[-1]!r}; rename all but one" in damage.detail


def test_a_text_beyond_the_limit_is_damage_in_a_table_too(tmp_path):
    texts = ["é" * 50, "é" * 51, "short"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    limits = ReadConfig(longest_bytes=100)
    first, second, third = read_any(tmp_path / "a.parquet", source="s", limits=limits)
    assert (first.text, third.text) == (texts[0], texts[2])
    assert second.trouble == Trouble.TOO_LONG and second.offset == 1 and "102 bytes" in second.detail


def test_every_fetch_of_an_address_is_a_document_of_its_own(tmp_path):
    fetched = [("2021-01-15T00:00:00Z", b"<p>a</p>"), ("2021-01-15T00:00:00Z", b"<p>b</p>"),
               ("2022-01-15T00:00:00Z", b"<p>a</p>")]  # fmt: skip
    pages = [Page("https://b.org/", "text/html", "utf-8", body, date) for date, body in fetched]
    for name in ("a.warc", "b.warc.gz"):
        write_warc(tmp_path / name, pages)
    first, second = ([d.id for d in read_any(tmp_path / n, source="s")] for n in ("a.warc", "b.warc.gz"))
    assert first == second and len(set(first)) == 3


def test_files_are_found_at_any_depth_in_a_fixed_order(tmp_path):
    for name in ("b.txt", "a/c.md", "a/b/d.JSONL.GZ", "a/e.pdf", "a/.hidden.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [p.name for p in input_files(tmp_path)] == ["d.JSONL.GZ", "c.md", "b.txt"]


def test_a_link_that_leads_nowhere_is_reported_as_what_it_is(tmp_path):
    (tmp_path / "gone.txt").symlink_to("nothing")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    (tmp_path / "there.md").symlink_to("a.txt")
    (tmp_path / "a.txt").write_text("Some words.")
    found = {path.name: list(read_any(path, source="s")) for path in input_files(tmp_path)}
    assert [*found] == ["a.txt", "gone.txt", "self.jsonl", "there.md"]
    assert all(one.trouble is Trouble.UNREADABLE for n in ("gone.txt", "self.jsonl") for one in found[n])
    assert found["a.txt"][0].text == found["there.md"][0].text == "Some words."
    (tmp_path / "out").mkdir()
    steps = run_steps(CurateConfig(), Input(tmp_path), tmp_path / "out", seed=1, work=tmp_path / "work")
    assert steps["funnel"][0]["quarantined"] == 2


def test_a_store_reached_by_url_gives_what_a_folder_gives(tmp_path):
    memory = fsspec.filesystem("memory")
    pages = [Page(f"https://b.org/{n}", "text/html", "utf-8", b"<p>hi</p>") for n in range(3)]
    write_warc(tmp_path / "crawl.warc.gz", pages)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_bytes(b'{"text": "one"}\nno json\n')
    memory.put(str(tmp_path), "/reach", recursive=True)
    local, remote = input_files(tmp_path), input_files("memory://reach")
    assert [relative_name(p, tmp_path) for p in local] == ["crawl.warc.gz", "deep/a.jsonl"]
    assert [relative_name(p, "memory://reach") for p in remote] == ["crawl.warc.gz", "deep/a.jsonl"]
    for here, there in zip(local, remote, strict=True):
        found = [list(read_any(path, source="s")) for path in (here, there)]
        assert [getattr(one, "text", one) for one in found[0] if isinstance(one, Document)] == [
            one.text for one in found[1] if isinstance(one, Document)
        ]
        assert len(found[0]) == len(found[1])
    with pytest.raises(DataError, match="memory://absent"):
        input_files("memory://absent")


ASCII = "Plain words of plain English. " * 30 + "\n\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("shift", range(3))
def test_the_end_of_a_block_inside_a_character_changes_nothing(tmp_path, monkeypatch, shift, encoding):
    monkeypatch.setattr("trivium.corpus.read.read._BLOCK", 1 << 18)
    text = "x" * shift + ASCII * 160 + "日本語の文章がここにあります。\n\n" * 9000
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert "\n\n".join(d.text for d in read_any(tmp_path / "a.txt", source="s", longest=8000)) == text


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("utf-8", "Café naïve, garçon, déjà là, Noël.\n\n"),
        ("cp1252", "Café naïve, garçon, déjà là, Noël.\n\n"),
        ("cp1251", "Это русский текст для проверки.\n\n"),
    ],
    ids=["utf-8", "cp1252", "cp1251"],
)
@pytest.mark.parametrize("first", [300, 900])  # less than a block of ASCII before anything else, or more
def test_the_first_characters_beyond_ascii_decide_the_encoding(tmp_path, monkeypatch, encoding, words, first):
    monkeypatch.setattr("trivium.corpus.read.read._BLOCK", 1 << 19)
    text = ASCII * first + words * 900
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert "\n\n".join(d.text for d in read_any(tmp_path / "a.txt", source="s", longest=8000)) == text


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"text":"a","n":[1,-0.0,1e400,12345678901234567890123,NaN,-Infinity,true,null]}', b'{"text":1,"text":"b"}'),
        *(
            b'\xef\xbb\xbf{"text":"mark"}',
            b'{"text":"\\ud83d\\ude00 \\u0000"}',
            b'{"text":"x","deep":' + b"[" * 190 + b"]" * 190 + b"}",
        ),
    ],
)
def test_a_line_is_read_as_the_standard_library_reads_it(line):
    assert repr(row_of(Line(line, 1, 0), ("text",))) == repr(json.loads(line.decode("utf-8-sig")))


def deep(levels):
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("begin", ["{", "\ufeff{", r'{"half": "\ud83d", '])
@pytest.mark.parametrize("levels", [300, 940, 100_000])
def test_rows_nested_too_deep_are_refused_at_any_call_depth(tmp_path, begin, levels):
    """The depth that the standard library reads and writes depends on the depth of the call."""
    (tmp_path / "a.jsonl").write_text(f'{begin}"text": "a", "n": {deep(levels)}}}\n{{"text": "b"}}')
    damage, document = read_any(tmp_path / "a.jsonl", source="s")
    assert damage.trouble in (Trouble.NOT_JSON, Trouble.SURROGATE) and "line 1 " in damage.detail
    assert document.text == "b"


def test_metadata_in_a_table_is_no_deeper_than_that_of_a_line(tmp_path):
    texts = [json.dumps({"n": 1}), f'{{"n": {deep(940)}}}']
    pq.write_table(pa.table({"text": ["a", "b"], "metadata": texts}), tmp_path / "a.parquet")
    read = [document.metadata for document in read_any(tmp_path / "a.parquet", source="s")]
    assert read == [{"n": 1}, {"metadata": texts[1]}]


@pytest.mark.parametrize("before", [b"", b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"])
def test_every_zstd_frame_is_read_also_behind_skippable_frames(tmp_path, before):
    lines = [json.dumps({"text": f"text {n}"}).encode() + b"\n" for n in range(3)]
    packed = [before + pa.compress(line, codec="zstd", asbytes=True) for line in lines]
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(packed))
    assert [d.text for d in read_any(tmp_path / "x.jsonl.zst", source="s")] == ["text 0", "text 1", "text 2"]


def test_damage_in_a_gzip_file_states_where_reading_continues(tmp_path):
    one, two, three = (gzip.compress(json.dumps({"text": text * 9}).encode() + b"\n") for text in "abc")
    broken = two[:20] + bytes([two[20] ^ 0xFF]) + two[21:]
    files = {
        "x.jsonl.gz": (one + broken + three, f"what begins at byte {len(one + broken)} is read"),
        "y.jsonl.gz": (one + broken + broken + three, f"what begins at byte {len(one + broken * 2)} is read"),
        "z.jsonl.gz": (one + b"stray" + three, f"what begins at byte {len(one) + 5} is read"),
        "end.jsonl.gz": (one + broken, "nothing behind it can be read"),
    }
    for name, (data, said) in files.items():
        (tmp_path / name).write_bytes(data)
        found = list(read_any(tmp_path / name, source="s"))
        (damage,) = [item for item in found if isinstance(item, Damage)]
        assert said in damage.reason and damage.offset == len(one)
        assert len(found) == (2 if name == "end.jsonl.gz" else 3)


def test_the_text_field_may_have_another_name_or_be_nested(tmp_path):
    rows = [
        {"raw_content": "one", "text": "a title", "data": None, "lang": "en"},
        {"data": {"body": "two", "n": 1}, "lang": "en"},
    ]
    limits = ReadConfig(text=("raw_content", "data.body"))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "y.parquet")
    for name in ("x.jsonl", "y.parquet"):
        found = list(read_any(tmp_path / name, source="s", limits=limits))
        assert [document.text for document in found] == ["one", "two"]
        assert [document.metadata["lang"] for document in found] == ["en", "en"]
        assert found[0].metadata["text"] == "a title"
    (damage, _) = read_any(tmp_path / "x.jsonl", source="s", limits=ReadConfig(text=("nothing",)))
    assert "harvest.read.text" in damage.detail


def test_a_text_stored_once_for_many_rows_is_copied_for_few_of_them_at_a_time(tmp_path):
    text = "ab " * (1 << 18)
    pq.write_table(pa.table({"text": [text] * 256}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < len(text)
    before, held = pa.total_allocated_bytes(), []
    limits = ReadConfig(longest_bytes=300 * len(text))  # with the default, this many rows of one entry are a bomb
    for document in read_any(tmp_path / "x.parquet", source="s", limits=limits):
        assert document.text == text
        held.append(pa.total_allocated_bytes() - before)
    assert len(held) == 256
    assert max(held) < 20 * len(text)


def test_a_row_group_that_unpacks_to_far_more_than_it_has_is_a_bomb_and_the_next_is_read(tmp_path):
    path, limits = tmp_path / "x.parquet", ReadConfig(longest_bytes=1 << 20)
    rows = pa.table({"text": ["a" * (1 << 21), "b", "c", "d"]})
    pq.write_table(rows, path, row_group_size=2, compression="zstd")
    bomb, *read = read_any(path, source="s", limits=limits)
    assert (bomb.trouble, bomb.records) == (Trouble.BOMB, 2)
    assert [document.text for document in read] == ["c", "d"]


def test_columns_of_any_type_become_plain_metadata(tmp_path):
    moment = datetime(2021, 1, 15, 7, 30)
    pq.write_table(
        pa.table(
            {
                "text": pa.array(["one", "two"]).dictionary_encode(),
                "metadata": [{"when": moment, "tags": ["a"], "cost": Decimal("1.5")}, None],
                "took": pa.array([timedelta(seconds=3), None], pa.duration("s")),
                "half": pa.array(np.array([0.5, 2], np.float16)),
                "day": pa.array([moment.date(), None]),
                "license": pa.array(["mit", None]).dictionary_encode(),
            }
        ),
        tmp_path / "x.parquet",
    )
    one, two = read_any(tmp_path / "x.parquet", source="s")
    assert (one.text, two.text) == ("one", "two")
    assert json.loads(json.dumps(one.metadata)) == one.metadata
    assert one.metadata == {
        "when": str(moment),
        "tags": ["a"],
        "cost": "1.5",
        "half": 0.5,
        "day": "2021-01-15",
        "license": "mit",
    }


def long_frame(data, window=28):
    """Return a frame as `zstd --long=N` writes it, with a window wider than libraries read by default."""
    how = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
    packer = zstandard.ZstdCompressor(compression_params=how).compressobj()
    return packer.compress(data) + packer.flush()


def test_zstd_frames_of_any_window_are_read_alone_and_among_others(tmp_path):
    lines = [b'{"text": "line %d, which is long enough"}\n' % n for n in range(4000)]
    pieces = [b"".join(lines[n : n + 1000]) for n in range(0, 4000, 1000)]
    narrow = [pa.compress(piece, codec="zstd", asbytes=True) for piece in pieces]
    wide = [long_frame(piece, window) for piece, window in zip(pieces, (28, 31, 29, 30), strict=True)]
    path = tmp_path / "x.jsonl.zst"
    for frames in (wide, [narrow[0], *wide[1:3], narrow[3]], [wide[0], narrow[1], narrow[2], wide[3]]):
        path.write_bytes(b"".join(frames))
        found = list(read_any(path, source="s"))
        assert [d.text for d in found] == [f"line {n}, which is long enough" for n in range(4000)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_is_text_even_if_its_metadata_says_raw_html(tmp_path, suffix):
    row = {"text": "Text with <b>signs</b>.", "metadata": {"raw": "html", "license": "CC0", "n": 1}}
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    (found,) = read_any(path, source="s")
    assert (found.text, found.metadata) == (row["text"], {"license": "CC0", "n": 1})


@pytest.mark.parametrize("left", [0.999, 0.9, 0.5, 0.02])
def test_a_cut_zstd_file_gives_all_that_can_be_unpacked(tmp_path, left):
    """The file has frames of a few lines each; those before the cut are complete."""
    lines = [json.dumps({"text": f"text {n**5}"}).encode() + b"\n" for n in range(20_000)]
    frames = [pa.compress(b"".join(lines[n : n + 40]), codec="zstd", asbytes=True) for n in range(0, len(lines), 40)]
    ends = np.cumsum([len(frame) for frame in frames])
    cut = int(ends[-1] * left)
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(frames)[:cut])
    found = list(read_any(tmp_path / "x.jsonl.zst", source="s"))
    texts = [one.text for one in found if isinstance(one, Document)]
    assert len(texts) >= 40 * int((ends <= cut).sum())
    assert texts == [f"text {n**5}" for n in range(len(texts))]
    (damage,) = [one for one in found if isinstance(one, Damage)]
    assert damage.trouble == Trouble.CUT and damage.offset == max(0, *(int(e) for e in ends if e <= cut), 0)


def test_a_damaged_frame_of_a_zstd_file_is_lost_alone(tmp_path):
    packer = zstandard.ZstdCompressor(write_checksum=True)
    lines = [json.dumps({"text": f"text {n**5}"}).encode() + b"\n" for n in range(400)]
    frames = [packer.compress(b"".join(lines[n : n + 40])) for n in range(0, len(lines), 40)]
    starts = [sum(map(len, frames[:n])) for n in range(len(frames))]
    data = b"".join(frames)
    path = tmp_path / "x.jsonl.zst"
    for place in range(starts[4], starts[5], 3):
        broken = bytearray(data)
        broken[place] ^= 0x40
        path.write_bytes(broken)
        found = list(read_any(path, source="s"))
        texts = [one.text for one in found if isinstance(one, Document)]
        assert texts == [f"text {n**5}" for n in range(400) if not 160 <= n < 200], place
        (damage,) = [one for one in found if isinstance(one, Damage)]
        assert (damage.trouble, damage.offset) == (Trouble.PACKED, starts[4])
        assert f"what begins at byte {starts[5]} is read" in damage.detail


def test_what_lies_within_a_damaged_frame_is_no_frame_of_the_file(tmp_path):
    """Stored contents may contain a frame, or the beginning of one: neither is read, or reported as the next frame."""
    packer, noise = zstandard.ZstdCompressor(write_checksum=True), np.random.default_rng(2).bytes(3000)
    one, inner, two = (
        packer.compress(json.dumps({"text": f"{name} text"}).encode() + b"\n") for name in ("first", "inner", "last")
    )
    beginning = packer.compress(noise + one[:4] + b"\x08" + noise)  # a reserved bit that must be 0
    holding = packer.compress(noise + inner + noise)
    assert inner in holding and one[:4] + b"\x08" in beginning
    path = tmp_path / "x.jsonl.zst"

    def read(frame, place, bit, behind):
        broken = bytearray(frame)
        broken[place] ^= bit
        path.write_bytes(one + broken + behind)
        found = list(read_any(path, source="s"))
        (damage,) = [each for each in found if isinstance(each, Damage)]
        assert damage.offset == len(one)
        return [each.text for each in found if isinstance(each, Document)], damage.detail

    for frame, place, bit in ((holding, -1, 1), (beginning, 4, 8)):
        texts, said = read(frame, place, bit, two)
        assert texts == ["first text", "last text"]
        assert f"what begins at byte {len(one) + len(frame)} is read" in said
    texts, said = read(holding, -1, 1, b"")
    assert texts == ["first text"] and "nothing behind it can be read" in said


def test_damaged_frames_in_a_row_are_one_loss(tmp_path):
    packer = zstandard.ZstdCompressor(write_checksum=True)
    frames = [packer.compress(json.dumps({"text": f"text {n}"}).encode() + b"\n") for n in range(6)]
    broken = [frame if n not in (1, 2, 4) else frame[:-1] + bytes([frame[-1] ^ 1]) for n, frame in enumerate(frames)]
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(broken))
    found = list(read_any(tmp_path / "x.jsonl.zst", source="s"))
    assert [one.text for one in found if isinstance(one, Document)] == ["text 0", "text 3", "text 5"]
    starts = [sum(map(len, frames[:n])) for n in range(6)]
    assert [one.offset for one in found if isinstance(one, Damage)] == [starts[1], starts[4]]


def test_text_before_and_after_a_damaged_frame_is_not_one_document(tmp_path):
    packer = zstandard.ZstdCompressor(write_checksum=True)
    parts = ["First piece.\n\nA second that breaks", "lost\n\n", "off here.\n\nA third, café.\n"]
    frames = [packer.compress(part.encode()) for part in parts]
    broken = bytearray(b"".join(frames))
    broken[len(frames[0]) + len(frames[1]) - 1] ^= 1  # the checksum
    path = tmp_path / "x.txt.zst"
    path.write_bytes(broken)
    found = list(read_any(path, source="s"))
    texts = [one.text.strip() for one in found if isinstance(one, Document)]
    assert texts == ["First piece.\n\nA second that breaks", "off here.\n\nA third, café."]
    assert [one.trouble for one in found if isinstance(one, Damage)] == [Trouble.PACKED]


OBJECTS = [{"id": n, "text": f"text {n} \u2028 of \u2029 two \x85 lines", "n": [n]} for n in range(5)]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zst", "a.jsonl", "a.ndjson.gz"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("form", ["lines", "crlf", "array", "indented array", "array on a line"])
def test_rows_are_read_from_lines_and_from_an_array_of_any_name(tmp_path, name, form, ascii_only):
    rows = [json.dumps(row, ensure_ascii=ascii_only) for row in OBJECTS]
    text = {
        "lines": "\n".join(rows),
        "crlf": "\r\n".join(rows) + "\r\n",
        "array": "[" + ",\n".join(rows) + "]\n",
        "indented array": json.dumps(OBJECTS, ensure_ascii=ascii_only, indent=2),
        "array on a line": "\ufeff[" + ", ".join(rows) + "]\n",
    }[form]
    packed = {"gz": gzip.compress, "st": lambda data: pa.compress(data, codec="zstd", asbytes=True)}
    (tmp_path / name).write_bytes(packed.get(name[-2:], bytes)(text.encode()))
    assert input_files(tmp_path) == [tmp_path / name]
    found = [(d.id, d.text, d.metadata) for d in read_any(tmp_path / name, source="s")]
    assert found == [(str(row["id"]), row["text"], {"n": row["n"]}) for row in OBJECTS]


def test_one_object_over_several_lines_is_one_row(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(OBJECTS[0], indent=1))
    (found,) = read_any(tmp_path / "a.json", source="s")
    assert found.text == OBJECTS[0]["text"]


def test_an_array_that_is_too_large_or_damaged_is_named_with_the_command_that_converts_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(OBJECTS * 20, indent=1))
    assert len(list(read_any(path, source="s"))) == 100
    (damage,) = read_any(path, source="s", limits=ReadConfig(longest_bytes=4000))
    assert damage.trouble == Trouble.NOT_JSON and "more than 4000 bytes" in damage.detail
    assert "jq -c '.[]' FILE > FILE.jsonl" in damage.detail
    path.write_text(path.read_text()[:-9])
    (damage,) = read_any(path, source="s")
    assert damage.trouble == Trouble.NOT_JSON and "begins as one JSON array" in damage.detail


def test_objects_of_an_array_are_refused_one_by_one(tmp_path):
    rows = ['{"text": "a"}', '{"title": "b"}', "7", r'{"text": "\ud800"}', '{"text": "c"}']
    (tmp_path / "a.json").write_text(f"[{', '.join(rows)}]")
    found = list(read_any(tmp_path / "a.json", source="s"))
    assert [one.text for one in found if isinstance(one, Document)] == ["a", "c"]
    damage = [one for one in found if isinstance(one, Damage)]
    assert [one.trouble for one in damage] == [Trouble.NO_TEXT, Trouble.NO_TEXT, Trouble.SURROGATE]
    assert [one.detail.partition(" has")[0].partition(" holds")[0] for one in damage] == [
        "object 2",
        "object 3",
        "object 4",
    ]


TEXTS = ["Größe", "日本語", "plain", None]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_a_parquet_text_may_have_any_type_that_holds_text(tmp_path, kind):
    inner = pa.types.is_dictionary(kind)
    column = pa.array(TEXTS, pa.string()).cast(kind.value_type if inner else kind)
    column = column.dictionary_encode() if inner else column
    nested = pa.StructArray.from_arrays([column], ["body"])
    pq.write_table(pa.table({"text": column, "data": nested, "license": column}), tmp_path / "a.parquet")
    for fields in (("text",), ("data.body",)):
        limits = ReadConfig(text=fields)
        *documents, damage = read_any(tmp_path / "a.parquet", source="s", limits=limits)
        assert [document.text for document in documents] == TEXTS[:3]
        assert damage.trouble == Trouble.NO_TEXT


def test_a_binary_text_that_is_not_utf_8_is_refused_by_its_row(tmp_path):
    column = pa.array([b"one", "zwei ä".encode("latin-1"), "drei ö".encode()], pa.binary())
    other = pa.array([b"\xff\xfe"] * 3, pa.binary())
    pq.write_table(pa.table({"text": column, "thumbnail": other}), tmp_path / "a.parquet")
    one, damage, three = read_any(tmp_path / "a.parquet", source="s")
    assert (one.text, three.text) == ("one", "drei ö")
    assert damage.trouble == Trouble.NOT_UTF8 and "row 1 is not UTF-8" in damage.detail


def test_settings_beside_a_corpus_are_counted_and_single_rows_without_text_are_damage(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"features": {"a": [1]}, "splits": []}, indent=2))
    (found,) = read_any(tmp_path / "a.json", source="s")
    assert found.kind == "JSON without text or content or body (harvest.read.text)"
    (tmp_path / "b.json").write_text('{"title": "b"}\n{"text": "one"}\n{"title": "c"}\n')
    damage, document, other = read_any(tmp_path / "b.json", source="s")
    assert document.text == "one" and {damage.trouble, other.trouble} == {Trouble.NO_TEXT}
    (tmp_path / "c.json").write_text('{"title": "b"}\n' * 1001)
    assert len([one for one in read_any(tmp_path / "c.json", source="s") if isinstance(one, Damage)]) == 1001


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json.gz", "a.warc", "a.parquet"])
def test_a_pipe_with_the_name_of_a_corpus_file_is_refused_without_waiting(tmp_path, name):
    os.mkfifo(tmp_path / name)
    (damage,) = read_any(tmp_path / name, source="s")
    assert damage.trouble == Trouble.UNREADABLE and "regular file" in damage.detail
