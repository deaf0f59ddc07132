"""Sixty bad files: what each is called, its bytes, the trouble it must be set aside for, the documents left."""

import gzip
import io
import zlib
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.document import Trouble

LIMIT = 1 << 18  # longest_bytes in these tests
GOOD = b'{"text": "a good line"}\n'


class Bad(NamedTuple):
    name: str
    data: bytes
    trouble: Trouble
    documents: int


def record(body=b"<p>hello</p>", *, http="", warc="", length=None, head=None, kind="response"):
    """One WARC record around an HTTP response; `length`: what Content-Length says."""
    block = (head or f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{http}\r\n").encode() + body
    length = len(block) if length is None else length
    return (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: https://a.example/\r\n{warc}"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {length}\r\n\r\n"
    ).encode() + block + b"\r\n\r\n"  # fmt: skip


def parquet(columns, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


@cache  # it takes a second
def bomb(size):
    squeeze = zlib.compressobj(9, wbits=31)
    return b"".join(squeeze.compress(bytes(1 << 20)) for _ in range(size >> 20)) + squeeze.flush()


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


def bad_files():
    return [*_texts(), *_lines(), *_packed_lines(), *_parquets(), *_records(), *_packed_records()]


def _texts():
    noise = bytes(range(256)) * 40
    return [
        Bad("empty.txt", b"", Trouble.EMPTY, 0),
        Bad("empty.md", b"", Trouble.EMPTY, 0),
        Bad("blank.txt", b" \n\t\n ", Trouble.BLANK, 0),
        Bad("blank.txt.gz", gzip.compress(b"\n\n"), Trouble.BLANK, 0),
        Bad("binary.txt", noise, Trouble.NOT_TEXT, 0),
        Bad("zeros.txt", bytes(5000), Trouble.NOT_TEXT, 0),
        Bad("binary.txt.gz", gzip.compress(noise), Trouble.NOT_TEXT, 0),
        Bad("half-utf16.txt", b"\xff\xfe" + b"\xd8" * 999, Trouble.NOT_TEXT, 0),
        Bad("huge.txt", b"word " * LIMIT, Trouble.TOO_LONG, 0),
        Bad("cut.txt.gz", gzip.compress(b"one two three " * 99)[:-30], Trouble.CUT, 1),
        Bad("bomb.txt.gz", bomb(300 << 20), Trouble.NOT_TEXT, 0),
    ]


def _lines():
    def with_good(line):
        return GOOD + line + b"\n" + GOOD

    return [
        Bad("empty.jsonl", b"", Trouble.EMPTY, 0),
        Bad("blank.jsonl", b"\n \n\n", Trouble.NO_LINE, 0),
        Bad("broken.jsonl", with_good(b'{"text": '), Trouble.NOT_JSON, 2),
        Bad("words.jsonl", with_good(b"just some words"), Trouble.NOT_JSON, 2),
        Bad("deep.jsonl", with_good(b"[" * 100_000), Trouble.NOT_JSON, 2),
        Bad("digits.jsonl", with_good(b'{"text": "a", "n": ' + b"9" * 5000 + b"}"), Trouble.NOT_JSON, 2),
        Bad("control.jsonl", with_good(b'{"text": "a\x01b"}'), Trouble.NOT_JSON, 2),
        Bad("cut-off.jsonl", GOOD + GOOD[:-5], Trouble.NOT_JSON, 1),
        Bad("latin1.jsonl", with_good('{"text": "é"}'.encode("latin-1")), Trouble.NOT_UTF8, 2),
        Bad("overlong.jsonl", with_good(b'{"text": "\xc0\xaf"}'), Trouble.NOT_UTF8, 2),
        Bad("raw-surrogate.jsonl", with_good(b'{"text": "\xed\xa0\x80"}'), Trouble.NOT_UTF8, 2),
        Bad("surrogate.jsonl", with_good(rb'{"text": "half \ud83d of one"}'), Trouble.SURROGATE, 2),
        Bad("backwards.jsonl", with_good(rb'{"text": "\udc00\ud800"}'), Trouble.SURROGATE, 2),
        Bad("in-id.jsonl", with_good(rb'{"id": "\uDfff", "text": "a"}'), Trouble.SURROGATE, 2),
        Bad("in-metadata.jsonl", with_good(rb'{"text": "a", "metadata": {"k": ["\uD800"]}}'), Trouble.SURROGATE, 2),
        Bad("list.jsonl", with_good(b"[1, 2]"), Trouble.NO_TEXT, 2),
        Bad("no-text.jsonl", with_good(b'{"title": "a"}'), Trouble.NO_TEXT, 2),
        Bad("number.jsonl", with_good(b'{"text": 7}'), Trouble.NO_TEXT, 2),
        Bad("null.jsonl", with_good(b'{"text": null}'), Trouble.NO_TEXT, 2),
        Bad("long.jsonl", with_good(b'{"text": "' + b"x" * LIMIT + b'"}'), Trouble.TOO_LONG, 2),
        Bad("longest.jsonl", GOOD + b"x" * 5 * LIMIT, Trouble.TOO_LONG, 1),
    ]  # fmt: skip


def _packed_lines():
    many = b"".join(b'{"text": "%d"}\n' % (n**7) for n in range(30_000))
    packed = gzip.compress(many)
    return [
        Bad("not.jsonl.gz", b"\x1f\x8b\x00not gzip at all", Trouble.PACKED, 0),
        Bad("members.jsonl.gz", flipped(gzip.compress(GOOD) * 3, 60), Trouble.PACKED, 2),
        Bad("first.jsonl.gz", flipped(gzip.compress(GOOD) * 3, 0), Trouble.PACKED, 2),
        Bad("checksum.jsonl.gz", flipped(gzip.compress(GOOD) * 2, -5), Trouble.PACKED, 1),
        Bad("rubbish-after.jsonl.gz", gzip.compress(GOOD) + b"rubbish", Trouble.PACKED, 1),
        Bad("cut.jsonl.gz", packed[: len(packed) // 2], Trouble.CUT, -1),
        Bad("bomb.jsonl.gz", bomb(300 << 20), Trouble.BOMB, 0),
        Bad("cut.jsonl.zst", zstd(many)[:-20], Trouble.CUT, -1),
        Bad("not.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"rubbish" * 9, Trouble.PACKED, 0),
        Bad("bomb.jsonl.zst", zstd(bytes(100 << 20)), Trouble.BOMB, 0),
    ]


def _parquets():
    good = parquet({"text": [f"a text {n}" for n in range(400)]}, row_group_size=100, compression="none")
    return [
        Bad("empty.parquet", b"", Trouble.EMPTY, 0),
        Bad("not.parquet", b"PAR1 and nothing else", Trouble.PARQUET, 0),
        Bad("cut.parquet", good[: len(good) // 2], Trouble.PARQUET, 0),
        Bad("footer.parquet", flipped(good, -6), Trouble.PARQUET, 0),
        Bad("group.parquet", good[:4] + bytes(40) + good[44:], Trouble.PARQUET, 300),
        Bad("no-column.parquet", parquet({"words": ["a"]}), Trouble.NO_TEXT, 0),
        Bad("nulls.parquet", parquet({"text": ["a", None, "b"]}), Trouble.NO_TEXT, 2),
        Bad("bytes.parquet", parquet({"text": [b"a", b"\xe9 b"]}), Trouble.NOT_UTF8, 1),
    ]


def _records():
    good = record()
    return [
        Bad("empty.warc", b"", Trouble.EMPTY, 0),
        Bad("newlines.warc", b"\r\n" * 50, Trouble.NO_RECORD, 0),
        Bad("words.warc", b"these are no records " * 50, Trouble.NOT_A_RECORD, 0),
        Bad("between.warc", good + b"rubbish\r\n\r\n" + good, Trouble.NOT_A_RECORD, 2),
        Bad("endless-head.warc", b"WARC/1.0\r\nWARC-Type: response\r\nX: " + b"x" * 70_000 + b"\r\n" + good,
            Trouble.NOT_A_RECORD, 1),
        Bad("no-length.warc", good + good.replace(b"Content-Length", b"Content-Width") + good, Trouble.LENGTH, 2),
        Bad("too-short.warc", good + record(length=20) + good, Trouble.LENGTH, 2),
        Bad("too-long.warc", good + record(length=90) + good + good, Trouble.LENGTH, 3),
        Bad("negative.warc", good + record(length=-1) + good, Trouble.LENGTH, 2),
        Bad("enormous.warc", good + record(length=10**12) + good, Trouble.TOO_LONG, 2),
        Bad("cut.warc", good + good[:-20], Trouble.CUT, 1),
        Bad("cut-head.warc", good + good[:60], Trouble.CUT, 1),
        Bad("http-head.warc", good + record(b"<p>hello</p>", head="HTTP/1.1 200 OK\r\nX: y\r\n"), Trouble.HEAD, 1),
        Bad("no-status.warc", good + record(b"<p>hello</p>", head="It is no status\r\n\r\n"), Trouble.HEAD, 1),
        Bad("digest.warc", good + record(warc="WARC-Block-Digest: sha1:" + "A" * 32 + "\r\n"), Trouble.DIGEST, 1),
        Bad("chunks.warc", good + record(b"5\r\nhello\r\nzz\r\n", http="Transfer-Encoding: chunked\r\n"),
            Trouble.ENCODING, 1),
        Bad("cut-chunk.warc", good + record(b"ff\r\nhello", http="Transfer-Encoding: chunked\r\n"),
            Trouble.ENCODING, 1),
        Bad("cut-gzip.warc", good + record(gzip.compress(b"hello")[:-9], http="Content-Encoding: gzip\r\n"),
            Trouble.ENCODING, 1),
        Bad("after-gzip.warc", good + record(gzip.compress(b"hello") + b"rubbish", http="Content-Encoding: gzip\r\n"),
            Trouble.ENCODING, 1),
        Bad("brotli.warc", good + record(b"\xffnot brotli", http="Content-Encoding: br\r\n"), Trouble.ENCODING, 1),
        Bad("bomb-inside.warc", good + record(bomb(300 << 20)[: LIMIT // 2], http="Content-Encoding: gzip\r\n"),
            Trouble.BOMB, 1),
    ]  # fmt: skip


def _packed_records():
    good = gzip.compress(record())
    return [
        Bad("flipped.warc.gz", good + flipped(good, 40) + good, Trouble.PACKED, 2),
        Bad("cut.warc.gz", good + good[:50], Trouble.CUT, 1),
        Bad("bomb.warc.gz", good + bomb(300 << 20) + good, Trouble.BOMB, 2),
        Bad("zeros.warc.gz", good + b"\x1f" + bytes(300) + good, Trouble.PACKED, 2),
        Bad("text.warc.gz", b"no gzip, no record " * 9, Trouble.NOT_A_RECORD, 0),
        Bad("member.warc.gz", good + gzip.compress(b"no record") + good, Trouble.NOT_A_RECORD, 2),
    ]
