"""Laws of WARC records as other programs write them: each is a document, a named rejection, or of a counted kind."""

import base64
import gzip
import hashlib
import io
import zlib
from collections import Counter

import pyarrow as pa
import pytest

from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.dedup.deduplicate import deduplicate
from trivium.corpus.document import Damage, PassedOver, Trouble
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import run_steps
from trivium.corpus.read.files import Input
from trivium.corpus.read.warc import Page, read_warc

WORDS = "<p>" + "The river was long and the stones were green. " * 30 + "</p>"
BODY = f"<!DOCTYPE html><html><body>{WORDS}\n\n{WORDS}</body></html>".encode()
LINE_ENDS = {"crlf": b"\r\n", "lf": b"\n", "crcrlf": b"\r\r\n"}


def lines(fields, end=b"\r\n", empty=None):
    """A head: its lines, then an empty line."""
    return end.join(field.encode() for field in fields) + end + (end if empty is None else empty)


def http(fields=("Content-Type: text/html",), body=BODY, *, status="HTTP/1.1 200 OK", **ends):
    return lines([status, *fields], **ends) + body


def record(block, *fields, kind="response", media="application/http; msgtype=response", after=None, **ends):
    stated = [f"Content-Type: {media}"] if media else []
    head = lines(
        ["WARC/1.0", f"WARC-Type: {kind}", "WARC-Target-URI: https://a.example/", *stated]
        + [*fields, f"Content-Length: {len(block)}"],
        **ends,
    )
    return head + block + (after if after is not None else 2 * ends.get("end", b"\r\n"))


def read(tmp_path, data, name="a.warc"):
    (tmp_path / name).write_bytes(data)
    return list(read_warc(tmp_path / name))


def body_of(tmp_path, data):
    (page,) = read(tmp_path, data)
    assert isinstance(page, Page), page
    return page.body


@pytest.mark.parametrize("packed", ["plain", "members", "whole", "zstd"])
@pytest.mark.parametrize("http_end", LINE_ENDS)
@pytest.mark.parametrize("warc_end", LINE_ENDS)
def test_lines_of_heads_may_end_in_crlf_or_lf(tmp_path, warc_end, http_end, packed):
    ends = LINE_ENDS[warc_end], LINE_ENDS[http_end]
    records = [record(http(body=BODY + bytes([n]), end=ends[1]), end=ends[0]) for n in range(65, 69)]
    data = {
        "plain": b"".join(records),
        "members": b"".join(map(gzip.compress, records)),
        "whole": gzip.compress(b"".join(records)),
        "zstd": pa.compress(b"".join(records), codec="zstd", asbytes=True),
    }[packed]
    found = read(tmp_path, data, {"plain": "a.warc", "zstd": "a.warc.zst"}.get(packed, "a.warc.gz"))
    assert [page.body[-1:] for page in found] == [b"A", b"B", b"C", b"D"]
    assert {page.body[:-1] for page in found} == {BODY}


@pytest.mark.parametrize(
    ("end", "empty"), [(b"\r\n", b"\n"), (b"\n", b"\r\n"), (b"\r\n", b" \t\r\n")], ids=["crlf-lf", "lf-crlf", "blanks"]
)
def test_the_empty_line_may_end_unlike_the_others(tmp_path, end, empty):
    assert body_of(tmp_path, record(http(end=end, empty=empty))) == BODY
    assert body_of(tmp_path, record(http(), end=end, empty=empty, after=b"\r\n\r\n")) == BODY


@pytest.mark.parametrize("after", [b"", b"\n", b"\r\n", b"\n\n", b"\r\n" * 4])
def test_any_number_of_line_ends_may_follow_a_record(tmp_path, after):
    assert len(read(tmp_path, record(http(), after=after) * 3)) == 3


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title, str.swapcase])
def test_names_of_fields_mean_the_same_in_any_case(tmp_path, change):
    packed = gzip.compress(BODY)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (packed[:9], packed[9:]))
    block = lines(
        [
            "HTTP/1.1 200 OK",
            change("Content-Type") + ": text/html; charset=koi8-r",
            change("Content-Encoding") + ": gzip",
            change("Transfer-Encoding") + ": chunked",
        ]
    )
    block += chunks + b"0\r\n\r\n"
    digest = base64.b32encode(hashlib.sha1(block).digest()).decode()
    fields = {
        "WARC-Type": "response",
        "WARC-Target-URI": "https://a.example/x",
        "WARC-Date": "2020-02-02T00:00:00Z",
        "Content-Type": "application/http; msgtype=response",
        "WARC-Block-Digest": f"sha1:{digest}",
        "Content-Length": str(len(block)),
    }
    head = lines(["WARC/1.0", *(f"{change(name)}: {value}" for name, value in fields.items())])
    (page,) = read(tmp_path, head + block + b"\r\n\r\n")
    assert page == Page("https://a.example/x", "text/html", "koi8-r", BODY, "2020-02-02T00:00:00Z")
    (damage,) = read(tmp_path, head + block.replace(b"200 OK", b"200 Ok") + b"\r\n\r\n")
    assert damage.trouble == Trouble.DIGEST


@pytest.mark.parametrize(
    ("stated", "kind", "charset"),
    [
        ("Text/HTML; Charset=UTF-8", "text/html", "UTF-8"),
        ("TEXT/PLAIN;charset='koi8-r'", "text/plain", "koi8-r"),
        (' application/xhtml+xml ; q=1; charset="big5"', "application/xhtml+xml", "big5"),
        ("text/html, text/html;charset=gbk", "text/html", "gbk"),
        ("text/html;;", "text/html", None),
        ("", "text/html", None),
        ("html", "text/html", None),
        ("*/*", "text/html", None),
        ("application/unknown", "text/html", None),
    ],
)
def test_a_media_type_is_read_in_any_case_and_guessed_where_none_is_stated(tmp_path, stated, kind, charset):
    (page,) = read(tmp_path, record(http([f"Content-Type:{stated}"])))
    assert (page.content_type, page.charset, page.body) == (kind, charset, BODY)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (BODY, "text/html"),
        (b"\n\n  <?xml version='1.0'?><html><p>x</p></html>", "text/html"),
        (b"Plain words, and 3 < 4.", "text/plain"),
        ("\ufeffWörter".encode("utf-16-le"), "text/plain"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", None),
    ],
)
def test_a_page_without_any_media_type_is_told_by_its_first_bytes(tmp_path, body, kind):
    (from_http,) = read(tmp_path, record(http([], body)))
    (plain,) = read(tmp_path, record(body, kind="resource", media=""))
    (no_media,) = read(tmp_path, record(http([], body), media=""))
    for found in (from_http, plain, no_media):
        if kind is None:
            assert found.kind == "content type"
        else:
            assert (found.content_type, found.body) == (kind, body)


@pytest.mark.parametrize(
    "block",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\r" + BODY,
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nA first paragraph of words.\r\n\r\nAnd another.",
        b"HTTP/1.1 nothing\r\n\r\n" + BODY,
        BODY,
    ],
)
def test_a_head_that_does_not_end_is_no_empty_page(tmp_path, block):
    (damage,) = read(tmp_path, record(block))
    assert isinstance(damage, Damage) and damage.trouble == Trouble.HEAD


@pytest.mark.parametrize(
    "status",
    ["HTTP/1.0 200 OK", "HTTP/2 200", "HTTP/2.0 206 Partial", "HTTP/3 200 ", "http/1.1 203 x", "HTTP/1.1  200"],
)
def test_a_page_is_read_whatever_version_answered(tmp_path, status):
    assert body_of(tmp_path, record(http(status=status))) == BODY
    assert body_of(tmp_path, record(b"\r\n" + http(status=status))) == BODY
    announced = b"HTTP/1.1 100 Continue\r\n\r\n" + http(status=status)
    assert body_of(tmp_path, record(announced)) == BODY


def test_a_line_that_is_no_field_is_passed_over_and_an_indented_one_goes_on(tmp_path):
    fields = ["no field at all", "Content-Type: text/html;", "\tcharset=koi8-r", "X: y"]
    (page,) = read(tmp_path, record(http(fields)))
    assert (page.charset, page.body) == ("koi8-r", BODY)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("coding", ["gzip", "X-GZIP", "deflate", "raw", "br", "zstd", "identity", "gzip, br"])
def test_codings_and_chunks_are_undone(tmp_path, coding, end):
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "deflate": zlib.compress(BODY),
        "raw": raw.compress(BODY) + raw.flush(),
        "br": pa.compress(BODY, codec="brotli", asbytes=True),
        "zstd": pa.compress(BODY, codec="zstd", asbytes=True),
        "identity": BODY,
        "gzip, br": pa.compress(gzip.compress(BODY), codec="brotli", asbytes=True),
    }.get(coding, gzip.compress(BODY))
    name = "deflate" if coding == "raw" else coding
    plain = http(["Content-Type: text/html", f"Content-Encoding: {name}"], packed, end=end)
    assert body_of(tmp_path, record(plain)) == BODY
    chunks = b"".join(b"%x;x=1" % len(p) + end + p + end for p in (packed[:50], packed[50:])) + b"0" + end * 2
    twice = ["Content-Type: text/html", f"content-encoding: {name}", "Transfer-Encoding: Chunked"]
    assert body_of(tmp_path, record(http(twice, chunks, end=end))) == BODY
    transfer = ["Content-Type: text/html", f"Transfer-Encoding: {name}, chunked"]
    assert body_of(tmp_path, record(http(transfer, chunks, end=end))) == BODY


def test_a_coding_that_is_not_known_is_named_unless_the_body_reads_as_text(tmp_path):
    fields = ["Content-Type: text/html", "Content-Encoding: sdch"]
    assert body_of(tmp_path, record(http(fields))) == BODY
    (damage,) = read(tmp_path, record(http(fields, bytes(range(200, 256)))))
    assert damage.trouble == Trouble.ENCODING and "'sdch'" in damage.detail


KINDS = [
    ("document", record(http())),
    ("document", record(http(end=b"\n"), end=b"\n")),
    ("document", record(b"Some plain words.", kind="conversion", media="text/plain")),
    ("document", record(BODY, kind="resource", media="text/html")),
    ("document", record(http([], BODY))),
    ("record type warcinfo", record(b"software: x\r\n", kind="warcinfo", media="application/warc-fields")),
    ("record type request", record(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", kind="Request")),
    ("record type metadata", record(b"via: x\r\n", kind="metadata", media="application/warc-fields")),
    ("record type revisit", record(http(body=b""), kind="REVISIT")),
    ("record type continuation", record(BODY, "WARC-Segment-Number: 2", kind="continuation", media="")),
    ("record type unknown", record(b"x", kind="screenshot")),
    ("record type not stated", record(http()).replace(b"WARC-Type: response\r\n", b"")),
    ("status", record(http(status="HTTP/1.1 404 Not Found"))),
    ("status", record(http(["Location: /x"], b"", status="HTTP/2 301"))),
    ("content type", record(http(["Content-Type: image/png"], b"\x89PNG"))),
    ("content type", record(b"\x89PNG", kind="resource", media="image/png")),
    ("content type", record(b"20200101\na.example A 1.2.3.4\n", media="text/dns")),
    ("empty payload", record(http(body=b""))),
    ("empty payload", record(b"")),
    (Trouble.HEAD, record(b"HTTP/1.1 200 OK\r\nX: y\r\n")),
    (Trouble.DIGEST, record(http(), "WARC-Block-Digest: sha1:" + "A" * 32)),
    (Trouble.ENCODING, record(http(["Content-Encoding: gzip"], gzip.compress(BODY)[:-9]))),
]


def counted(data):
    """How many records a file holds, by a reader of a few lines that knows nothing of what is read here."""
    file, records = io.BytesIO(data), 0
    while line := file.readline():
        if not line.strip():
            continue
        assert line.startswith(b"WARC/"), line
        length = 0
        while field := file.readline().strip():
            name, _, value = field.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        file.read(length)
        records += 1
    return records


@pytest.mark.parametrize("packed", [False, True])
def test_every_record_is_a_document_a_named_rejection_or_of_a_counted_kind(tmp_path, packed):
    data = b"".join(block for _, block in KINDS)
    expected = Counter(kind for kind, _ in KINDS)
    folder = tmp_path / "in"
    folder.mkdir()
    stored = b"".join(gzip.compress(block) for _, block in KINDS) if packed else data
    path = folder / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(stored)
    found = list(read_warc(path))
    names = [
        "document" if isinstance(one, Page) else one.kind if isinstance(one, PassedOver) else one.trouble
        for one in found
    ]
    assert names == [kind for kind, _ in KINDS]
    assert len(found) == counted(data) == len(KINDS)

    (tmp_path / "out").mkdir()
    funnel = run_steps(
        CurateConfig(filters=("extract",)), Input(folder), tmp_path / "out", seed=1, work=tmp_path / "work"
    )["funnel"]
    step = funnel[0]
    assert step["documents"] + step["quarantined"] + sum(step["passed_over"].values()) == counted(data)
    passed_over = {str(kind): number for kind, number in expected.items() if kind in step["passed_over"]}
    assert step["passed_over"] == passed_over and len(passed_over) == 10
    assert funnel[1]["documents"] == expected["document"]

    sound = tmp_path / "sound"
    sound.mkdir()
    (sound / path.name).write_bytes(b"".join(block for kind, block in KINDS if not isinstance(kind, Trouble)))
    for by in ("near", "text", "lines"):
        (tmp_path / by).mkdir()
        work = tmp_path / f"{by}-work"
        found = deduplicate(CurateConfig(), Input(sound), tmp_path / by, by=by, work=work, seed=1)
        read = found["funnel"][0]
        assert read["passed_over"] == passed_over and read["documents"] == expected["document"]

    (tmp_path / "harvest").mkdir()
    told = harvest(HarvestConfig(), tmp_path / "harvest", seed=1, corpus=folder)
    assert told["passed_over"] == passed_over
    assert told["documents"] + told["heldout"] == expected["document"] and told["quarantined"] == 3
