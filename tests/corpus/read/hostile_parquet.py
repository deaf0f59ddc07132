"""Small Parquet files that ask for gigabytes, or that no reader should follow; written by hand, as no library would."""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_KINDS = {"i32": 5, "i64": 6}
ZSTD, PLAIN, RLE, DELTA_LENGTHS, RLE_DICTIONARY = 6, 0, 3, 6, 8
BYTE_ARRAY, INT32 = 6, 1
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
Struct = Mapping[int, Any]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def thrift(fields: Struct) -> bytes:
    """A struct in the compact protocol. Values: ("i32", n), ("i64", n), bytes, a struct, ("list", values)."""
    return b"".join(_field(number, value) for number, value in fields.items()) + b"\0"


def _field(number: int, value: Any) -> bytes:
    kind, content = _value(value)
    return bytes([kind]) + varint(number << 1) + content  # the long form, with the number of the field


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, Mapping):
        return 12, thrift(value)
    name, content = value
    if name == "list":
        inner = [_value(one) for one in content]
        return 9, bytes([0xF0 | (inner[0][0] if inner else 12)]) + varint(len(inner)) + b"".join(
            one for _, one in inner
        )
    return _KINDS[name], varint((content << 1) ^ (content >> 63))


def page(body: bytes, values: int, encoding: int, *, unpacked: int | None = None, dictionary: bool = False) -> bytes:
    """A page of a chunk that is packed with zstd. unpacked: what its header says, if not the truth."""
    packed = pa.compress(body, codec="zstd", asbytes=True)
    own = {1: ("i32", values), 2: ("i32", encoding), 3: ("i32", RLE), 4: ("i32", RLE)}
    header = {
        1: ("i32", 2 if dictionary else 0),
        2: ("i32", len(body) if unpacked is None else unpacked),
        3: ("i32", len(packed)),
        7 if dictionary else 5: dict(list(own.items())[: 2 if dictionary else 4]),
    }
    return thrift(header) + packed


def levels(count: int, level: int) -> bytes:
    """`count` equal levels of at most 1, as one run."""
    run = varint(count << 1) + bytes([level])
    return struct.pack("<I", len(run)) + run


def element(name: str, *, kind: int | None = None, repetition: int = REQUIRED, children: int = 0) -> Struct:
    found: dict[int, Any] = {} if kind is None else {1: ("i32", kind)}
    found |= {3: ("i32", repetition), 4: name.encode()}
    found |= {5: ("i32", children)} if children else {}
    return found | ({6: ("i32", 0)} if kind == BYTE_ARRAY else {})  # a string


def file_of(
    chunks: Sequence[tuple[str, int, bytes, int]],
    schema: Sequence[Struct],
    *,
    rows: int,
    groups: int = 1,
    more: Struct | None = None,
) -> bytes:
    """A file of one or more row groups that all have the same chunks: (path, kind, pages, values). Its footer says that
    each chunk takes no more bytes unpacked than packed. more: fields of the footer behind the others."""
    data, columns = b"PAR1", []
    for path, kind, pages, values in chunks:
        about = {
            1: ("i32", kind),
            2: ("list", [("i32", PLAIN)]),
            3: ("list", [part.encode() for part in path.split(".")]),
            4: ("i32", ZSTD),
            5: ("i64", values),
            6: ("i64", len(pages)),
            7: ("i64", len(pages)),
            9: ("i64", len(data)),
        }
        columns.append({2: ("i64", len(data)), 3: about})
        data += pages
    group = {1: ("list", columns), 2: ("i64", len(data)), 3: ("i64", rows)}
    footer = thrift({1: ("i32", 1), 2: ("list", schema), 3: ("i64", rows * groups), 4: ("list", [group] * groups)})
    footer = footer[:-1] + (thrift(more) if more else b"\0")
    return data + footer + struct.pack("<I", len(footer)) + b"PAR1"


def texts(pages: bytes, values: int, *, rows: int | None = None, repetition: int = REQUIRED, **more: Any) -> bytes:
    """A file with one column of texts."""
    schema = [element("schema", children=1), element("text", kind=BYTE_ARRAY, repetition=repetition)]
    return file_of([("text", BYTE_ARRAY, pages, values)], schema, rows=values if rows is None else rows, **more)


def text_of(size: int) -> bytes:
    """One text as it is stored."""
    return struct.pack("<I", size) + b"a" * size


def deep_schema(levels_of_groups: int) -> list[Struct]:
    groups = [element("g", repetition=OPTIONAL, children=1)] * levels_of_groups
    return [element("schema", children=1), *groups, element("text", kind=BYTE_ARRAY, repetition=OPTIONAL)]


def lists_of_one_text(size: int, count: int) -> bytes:
    """An ordinary file: a list in which one text stands many times."""
    kind = pa.struct([("tags", pa.list_(pa.string()))])
    sink = BytesIO()
    rows = pa.array([{"tags": ["x" * size] * count}], kind)
    pq.write_table(pa.table({"text": ["a"], "metadata": rows}), sink, dictionary_pagesize_limit=1 << 30)
    return sink.getvalue()


BIG = 24 << 20  # bytes that a reader would take without bounds, of files of a few kilobytes
MANY = BIG  # values
DEEP = 30_000  # columns within one another; with 100,000 Arrow ends the process


def one_text() -> bytes:
    return page(text_of(3), 1, PLAIN)


def with_dictionary(text: bytes, entries: int) -> bytes:
    return texts(page(text, entries, PLAIN, dictionary=True) + page(b"\x01\x02\0", 1, RLE_DICTIONARY), 1)


def a_list_of_many_values() -> bytes:
    schema = [
        element("schema", children=2),
        element("text", kind=BYTE_ARRAY),
        element("metadata", children=1),
        element("n", kind=INT32, repetition=REPEATED),
    ]
    rest = varint((MANY - 1) << 1)
    # The first value begins a row, the others continue it; all are the first entry of the dictionary.
    repetitions = struct.pack("<I", 3 + len(rest)) + b"\x02\0" + rest + b"\x01"
    body = repetitions + levels(MANY, 1) + b"\x01" + varint(MANY << 1) + b"\0"
    pages = page(struct.pack("<i", 7), 1, PLAIN, dictionary=True) + page(body, MANY, RLE_DICTIONARY)
    return file_of([("text", BYTE_ARRAY, one_text(), 1), ("metadata.n", INT32, pages, MANY)], schema, rows=1)


def shared_row_groups() -> bytes:
    noise = b"".join(hashlib.sha512(bytes([n])).hexdigest().encode() for n in range(250))
    return texts(page(struct.pack("<I", len(noise)) + noise, 1, PLAIN), 1, groups=1000)


# By what is wrong with each.
HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "a page of a large text": lambda: texts(page(text_of(BIG), 1, PLAIN), 1),
    "a dictionary of a large text": lambda: with_dictionary(text_of(BIG), 1),
    "a page that says it is large": lambda: texts(page(text_of(3), 1, PLAIN, unpacked=2**31 - 1), 1),
    "a dictionary that says it has many entries": lambda: with_dictionary(text_of(3), MANY),
    # One block of equal lengths: 128 values a block, 4 parts each, and how many values; the first is 0.
    "many lengths": lambda: texts(page(b"\x80\x01\x04" + varint(MANY) + b"\0", MANY, DELTA_LENGTHS), MANY),
    "many nulls": lambda: texts(page(levels(MANY, 0), MANY, PLAIN), MANY, repetition=OPTIONAL),
    "a list of many values": a_list_of_many_values,
    "a list that repeats a text": lambda: lists_of_one_text(50_000, 600),
    "row groups that share their bytes": shared_row_groups,
    "more rows than pages": lambda: texts(one_text(), 1, rows=2**40),
    "columns in columns": lambda: file_of([], deep_schema(DEEP), rows=0),
    "columns in columns in a second schema": lambda: file_of(
        [], deep_schema(1), rows=0, more={2: ("list", deep_schema(DEEP))}
    ),
}
