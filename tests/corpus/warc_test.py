"""Laws of reading and writing WARC files."""

import gzip
import os
from pathlib import Path

import pytest

from trivium.corpus.extract import html_text
from trivium.corpus.read import read_any
from trivium.corpus.warc import Damage, Page, read_warc, write_warc

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


def test_a_record_shorter_than_it_says_is_damage_even_without_a_digest(tmp_path):
    write_warc(tmp_path / "a.warc.gz", PAGES[:1])
    lines = gzip.decompress((tmp_path / "a.warc.gz").read_bytes()).split(b"\r\n")
    plain = b"\r\n".join(line for line in lines if not line.startswith(b"WARC-Block-Digest"))
    (tmp_path / "a.warc").write_bytes(plain)
    assert list(read_warc(tmp_path / "a.warc")) == PAGES[:1]
    (tmp_path / "a.warc").write_bytes(plain[:-40])
    assert [type(one) for one in read_warc(tmp_path / "a.warc")] == [Damage]


def test_a_flipped_byte_never_passes_as_a_page(tmp_path):
    write_warc(tmp_path / "a.warc.gz", PAGES)
    data = bytearray((tmp_path / "a.warc.gz").read_bytes())
    for place in range(0, len(data), 61):
        broken = bytearray(data)
        broken[place] ^= 0x40
        (tmp_path / "b.warc.gz").write_bytes(broken)
        read = list(read_warc(tmp_path / "b.warc.gz"))
        whole = [page for page in read if isinstance(page, Page)]
        assert whole == PAGES[: len(whole)]
        assert len(whole) == 6 or isinstance(read[-1], Damage)


@pytest.mark.parametrize("content", [b"not a WARC file " * 50, b"\x1f\x8bnot gzip either", b"\x00" * 500])
def test_a_file_of_another_kind_is_damage(tmp_path, content):
    (tmp_path / "a.warc.gz").write_bytes(content)
    (damage,) = read_warc(tmp_path / "a.warc.gz")
    assert isinstance(damage, Damage)


def test_real_and_broken_warc_files_give_their_page_or_say_why_not():
    if "TRIVIUM_DATA" not in os.environ:
        pytest.skip("TRIVIUM_DATA is not set: no real WARC files here")
    folder = Path(os.environ["TRIVIUM_DATA"]) / "warc"
    read = {path.name: list(read_any(path, source="real")) for path in sorted(folder.glob("*.warc*"))}
    assert len(read) >= 4
    for name, found in read.items():
        documents = [one for one in found if not isinstance(one, Damage)]
        if "trunc" in name:
            assert found and not documents
            continue
        assert len(documents) == len(found) == 1, found
        assert "Example Domain" in documents[0].text or "IANA" in documents[0].text
        assert html_text(documents[0].text)
