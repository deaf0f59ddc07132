"""Laws of reading and writing WARC files."""

import gzip
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from trivium.corpus.clean.extract import extractor
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import Damage, Document
from trivium.corpus.read.encoding import decode
from trivium.corpus.read.read import read_any
from trivium.corpus.read.streams import unpacked
from trivium.corpus.read.warc import Page, read_warc, write_warc

PAGES = [
    Page(
        f"https://a.example/{n}",
        "text/html",
        "utf-8",
        f"<p>Page {n} é {'text ' * 300}</p>".encode(),
        document=f"d{n}",
        source="s",
    )
    for n in range(6)
]


def test_pages_come_back_as_they_were_written(tmp_path):
    assert write_warc(tmp_path / "a.warc.gz", PAGES) == 6
    assert list(read_warc(tmp_path / "a.warc.gz")) == PAGES


@pytest.mark.parametrize(
    "name",
    ["two  blanks", " at both ends ", "a\nline", "a\r\nWARC-Type: metadata", "a\ttab", "100%41", "a\xa0b\x85\u2028c"],
    ids=ascii,
)
def test_any_name_of_a_source_and_a_document_comes_back(tmp_path, name):
    """A folder may be called so; of a header, readers join lines and blanks."""
    pages = [replace(PAGES[0], document=name, source=name), PAGES[1]]
    write_warc(tmp_path / "a.warc.gz", pages)
    assert list(read_warc(tmp_path / "a.warc.gz")) == pages


def test_a_body_of_several_gzip_members_is_unpacked_whole_and_within_the_limit(tmp_path):
    members = b"".join(gzip.compress(part) for part in (b"one ", b"", b"two ", b"three")) + bytes(9)
    assert unpacked(members, "gzip", longest=13) == b"one two three"
    assert unpacked(members, "gzip", longest=12) is None
    assert unpacked(gzip.compress(b"x" * 9) * 1000, "gzip", longest=100) is None
    with pytest.raises(EOFError):
        unpacked(members[:-12], "gzip", longest=99)
    with pytest.raises(OSError, match="gzip"):
        unpacked(members + b"rubbish", "gzip", longest=99)


@pytest.mark.parametrize(("codings", "undone"), [(5, True), (6, False), (500, False)])
def test_a_body_packed_more_often_than_servers_do_is_damage(tmp_path, codings, undone):
    body = b"hello"
    for _ in range(codings):
        body = gzip.compress(body, 0)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: " + b", ".join([b"gzip"] * codings)
    block = head + b"\r\n\r\n" + body
    warc = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(warc + b"Content-Length: %d\r\n\r\n%b\r\n\r\n" % (len(block), block))
    (found,) = read_warc(path)
    assert (isinstance(found, Page) and found.body == b"hello") == undone
    assert undone or f"states {codings} encodings" in found.detail


@pytest.mark.timeout(60)
def answered(path, header, body):
    """What is read of an answer with this header, written without a digest."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n%b\r\n\r\n%b" % (header.encode(), body)
    warc = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\n"
    path.write_bytes(warc + b"Content-Length: %d\r\n\r\n%b\r\n\r\n" % (len(block), block))
    (found,) = read_warc(path)
    return found


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "compress"])
@pytest.mark.parametrize("body", [b"<!doctype html><p>" + b"Text. " * 50, b"\r\n <p>x</p>", b"A text of words. " * 9])
def test_a_body_that_the_crawler_unpacked_is_taken_though_its_header_says_otherwise(tmp_path, coding, body):
    assert answered(tmp_path / "a.warc", f"Content-Encoding: {coding}", body).body == body


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_body_that_is_packed_and_damaged_is_no_text(tmp_path, coding):
    body = (
        pa.compress(b"<p>Text. " * 50, codec="brotli" if coding == "br" else coding, asbytes=True)
        if (coding != "deflate")
        else zlib.compress(b"<p>Text. " * 50)
    )
    assert answered(tmp_path / "a.warc", f"Content-Encoding: {coding}", body).body == b"<p>Text. " * 50
    found = answered(tmp_path / "a.warc", f"Content-Encoding: {coding}", body[: len(body) // 2])
    assert isinstance(found, Damage)


def test_a_chunked_body_without_its_last_empty_chunk_is_whole_and_one_cut_in_a_chunk_is_not(tmp_path):
    body = b"5\r\n<p>On\r\nA\r\ne and two.\r\n"
    for end in (b"0\r\n\r\n", b"", b"\r\n"):
        found = answered(tmp_path / "a.warc", "Transfer-Encoding: chunked", body + end)
        assert found.body == b"<p>One and two."
    for wrong in (body[:-5], body + b"rubbish"):
        assert isinstance(answered(tmp_path / "a.warc", "Transfer-Encoding: chunked", wrong), Damage)


def test_blanks_where_a_charset_should_be_are_passed_once(tmp_path):
    head = b"WARC/1.0\r\nWARC-Type: resource\r\nContent-Type: text/plain; charset=%b!\r\nContent-Length: 5\r\n\r\n"
    record = head % (b" " * 8000) + b"hello\r\n\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(record * 200)
    assert [page.body for page in read_warc(path)] == [b"hello"] * 200
    page = b"<meta charset=" + b" " * 4000 + b"caf\xe9"
    assert {decode(page, "latin-1") for _ in range(200)} == {page.decode("latin-1")}


def test_the_same_pages_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_warc(tmp_path / name, PAGES)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("missing", [1, 9, 40, 300])
def test_a_cut_file_gives_its_whole_pages_and_then_one_damage(tmp_path, missing, compressed):
    write_warc(tmp_path / "a.warc.gz", PAGES)
    data = (tmp_path / "a.warc.gz").read_bytes()
    path = tmp_path / "cut.warc.gz"
    # the last four bytes of a plain file are line ends of no consequence
    path.write_bytes(data[:-missing] if compressed else gzip.decompress(data)[: -missing - 4])
    *pages, damage = read_warc(path)
    assert isinstance(damage, Damage)
    assert pages == PAGES[: len(pages)]
    assert len(pages) >= 5 - (missing == 300)


def _flipped(data, path, places):
    for place in places:
        broken = bytearray(data)
        broken[place] ^= 0x40
        path.write_bytes(broken)
        yield place, list(read_warc(path))


def test_a_flipped_byte_costs_the_page_it_stands_in_and_no_other(tmp_path):
    write_warc(tmp_path / "a.warc.gz", PAGES)
    data = (tmp_path / "a.warc.gz").read_bytes()
    members = [n for n in range(len(data)) if data[n : n + 3] == b"\x1f\x8b\x08"]
    assert len(members) == len(PAGES)
    for place, read in _flipped(data, tmp_path / "b.warc.gz", range(0, len(data), 7)):
        hit = sum(start <= place for start in members) - 1
        whole = [page for page in read if isinstance(page, Page)]
        damage = [one for one in read if isinstance(one, Damage)]
        assert whole in (PAGES, PAGES[:hit] + PAGES[hit + 1 :])
        assert len(whole) + len(damage) == len(PAGES)
        assert all(one.offset == members[hit] for one in damage)


def test_in_a_plain_file_too_every_undamaged_record_is_read(tmp_path):
    write_warc(tmp_path / "a.warc.gz", PAGES)
    data = gzip.decompress((tmp_path / "a.warc.gz").read_bytes())
    starts = [n for n in range(len(data)) if data[n : n + 8] == b"WARC/1.1" or data[n : n + 8] == b"WARC/1.0"]
    assert len(starts) == len(PAGES)
    for place, read in _flipped(data, tmp_path / "b.warc", range(0, len(data), 13)):
        hit = sum(start <= place for start in starts) - 1
        whole = [page for page in read if isinstance(page, Page)]
        others = [page for n, page in enumerate(PAGES) if n != hit]
        assert [page for page in whole if page in PAGES] in (PAGES, others)
        # a header that no digest covers may change unnoticed, a body never
        assert all(page.body in {p.body for p in PAGES} for page in whole)


def test_real_and_broken_warc_files_give_their_page_or_say_why_not():
    if "TRIVIUM_DATA" not in os.environ:
        pytest.skip("TRIVIUM_DATA is not set: no real WARC files here")
    folder = Path(os.environ["TRIVIUM_DATA"]) / "warc"
    read = {path.name: list(read_any(path, source="real")) for path in sorted(folder.glob("*.warc*"))}
    assert len(read) >= 4
    for name, found in read.items():
        documents = [one for one in found if isinstance(one, Document)]
        if "trunc" in name:
            assert found and not documents
            continue
        assert len(documents) == 1 and not any(isinstance(one, Damage) for one in found), found
        assert "Example Domain" in documents[0].text or "IANA" in documents[0].text
        assert extractor(ExtractConfig())(documents[0].text)
