"""Read what a Parquet file declares about itself before Arrow acts on it: nesting, page sizes, numbers of values.

Arrow follows a schema to any depth and allocates what a page header asks for, so a small file can end the process or
take gigabytes. The sums in the footer need not be true. The footer and page headers are Thrift structs in its compact
protocol: a header byte for each field, and integers of variable length.
"""

import struct
from collections.abc import Iterator
from io import SEEK_END
from typing import Any, BinaryIO, NamedTuple

import pyarrow.parquet as pq

MAX_COLUMN_LEVELS = 100
MOST_FOOTER_BYTES = 64 << 20  # some 400,000 chunks of columns
_MAX_STRUCTS = 64  # within one another, in a header
_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # length of the footer, and the magic
_WINDOW_BYTES, _LARGEST_HEADER_BYTES = 1 << 10, 16 << 20  # Arrow refuses page headers above 16 MiB
_PADDING_BYTES = 100  # old writers left them out of the size of a chunk; Arrow reads as many more
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_DELTA = (5, 6, 7)  # encodings of which Arrow allocates all lengths of a page at once
_LENGTH_BYTES, _ENTRY_BYTES = 4, 16  # Arrow's memory for a length and for a dictionary entry
_LEVELS_BYTES = 8  # memory of a value in a list besides itself: both levels, and an offset
_VALUE_BYTES = {"INT96": 12}
_WIDEST_BYTES = 8  # size of a value of any other type, or of its number in a dictionary


class Declared(NamedTuple):
    """The sums that the page headers of columns declare.

    unpacked: bytes. beside: further bytes that Arrow allocates for lengths and for the values of lists.
    """

    unpacked: int
    beside: int
    rows: int


def footer_problem(file: BinaryIO) -> str:
    """Return why Arrow must not read a file, or "". Raises ValueError if the footer is no Thrift struct.

    Files without a footer give "", because Arrow reports what is wrong with them.
    """
    size = file.seek(0, SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    file.seek(0)
    if len(tail) < _TAIL_BYTES or not tail.endswith(_MAGIC):
        return ""
    length = struct.unpack("<I", tail[:4])[0]
    if length > size - _TAIL_BYTES:
        return ""
    if length > MOST_FOOTER_BYTES:
        return f"its footer has {length} bytes; the limit is {MOST_FOOTER_BYTES}: write larger row groups"
    file.seek(size - _TAIL_BYTES - length)
    reader = _Thrift(file.read(length))
    file.seek(0)
    deepest = 0
    for field, kind in reader.fields():
        if field == 2 and kind == _LIST:  # the last one counts, so all are looked at
            deepest = max(deepest, _depth(reader))
        else:
            reader.value(kind)
    return (
        f"its columns are nested {deepest} levels deep; the limit is {MAX_COLUMN_LEVELS}"
        if deepest > MAX_COLUMN_LEVELS
        else ""
    )


def declared(file: BinaryIO, table: pq.ParquetFile, group: int, columns: set[int]) -> Declared:
    """Read the page headers of some columns, by number, of a row group. Raises ValueError if one is damaged."""
    unpacked = beside = 0
    rows: list[int] = []
    for number in sorted(columns):
        chunk, column = table.metadata.row_group(group).column(number), table.schema.column(number)
        values = 0
        for page in _pages(file, chunk):
            unpacked += page.unpacked
            values += page.rows
            if page.is_dictionary:
                beside += _ENTRY_BYTES * page.values
            elif page.encoding in _DELTA:
                beside += _LENGTH_BYTES * page.values
        if column.max_repetition_level:
            width = max(_VALUE_BYTES.get(column.physical_type, _WIDEST_BYTES), column.length or 0)
            beside += values * (_LEVELS_BYTES + width)
        else:
            rows.append(values)
    return Declared(unpacked, beside, min(rows, default=table.metadata.row_group(group).num_rows))


class _Page(NamedTuple):
    unpacked: int
    packed: int
    values: int
    encoding: int
    is_dictionary: bool

    @property
    def rows(self) -> int:
        """Values of the column. Entries of a dictionary are not."""
        return 0 if self.is_dictionary else self.values


def _pages(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[_Page]:
    """Yield the headers of a chunk's pages, up to the one with which Arrow stops."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
        at = chunk.dictionary_page_offset
    end, seen = at + chunk.total_compressed_size, 0
    if not 0 <= at <= end <= file.seek(0, SEEK_END):
        raise ValueError(f"a column chunk lies in bytes {at} to {end}, beyond the file")
    while seen < chunk.num_values and at < end + _PADDING_BYTES:
        header, length = _page_header(file, at)
        if header is None:
            return
        page = _page_of(header)
        if min(page) < 0:
            raise ValueError(f"the page header at byte {at} declares {page}")
        yield page
        seen += page.rows
        at += length + page.packed


def _page_of(header: dict[int, Any]) -> _Page:
    # Fields 2 and 3 are bytes unpacked and packed. Field 5 is the header of a data page, 7 of a dictionary, 8 of a data
    # page of version 2; in each, field 1 is the number of values.
    kind = header.get(1, -1)
    own = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0)) or {}
    encoding = own.get(4 if kind == _DATA_V2 else 2, 0)
    found = (header.get(2, 0), header.get(3, 0), own.get(1, 0), encoding)
    if not all(isinstance(number, int) for number in found):
        raise ValueError("a page header has other fields than numbers")
    return _Page(*found, is_dictionary=kind == _DICTIONARY)


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any] | None, int]:
    """Return the fields of the page header at a byte, and its length; None at the end of the file."""
    window = _WINDOW_BYTES
    while True:
        file.seek(at)
        data = file.read(window)
        if not data:
            return None, 0
        reader = _Thrift(data)
        try:
            return reader.value(_STRUCT), reader.at
        except IndexError:
            if len(data) < window or window >= _LARGEST_HEADER_BYTES:
                raise ValueError(f"the page header at byte {at} breaks off") from None
            window *= 16


def _depth(reader: "_Thrift") -> int:
    """Return how deep the columns of a schema are nested. A group precedes its children and states their number."""
    kind, count = reader.list_header()
    left: list[int] = []  # number of remaining elements of each group around an element
    deepest = 0
    for _ in range(count):
        element = reader.value(kind)
        while left and left[-1] <= 0:
            left.pop()
        if left:
            left[-1] -= 1
        children = element.get(5, 0) if isinstance(element, dict) else 0
        left.append(children if isinstance(children, int) else 0)
        deepest = max(deepest, len(left) - 1)
    return deepest


class _Thrift:
    """Reads the compact protocol of Thrift. Raises IndexError where the bytes end, ValueError where they are wrong."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and kind of each field of a struct. The caller reads its value before the next one."""
        field = 0
        while (head := self._byte()) != 0:
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._integer()
            yield field, kind

    def list_header(self) -> tuple[int, int]:
        """Return the kind and number of a list's elements."""
        head = self._byte()
        return head & 15, head >> 4 if head >> 4 != 15 else self._varint()

    def value(self, kind: int, level: int = 0, *, in_list: bool = False) -> Any:
        """Read a value: an integer, a struct as a mapping of field numbers to values, or None for any other kind.

        in_list: whether the value is an element, because only there a boolean takes a byte of its own.
        """
        if level > _MAX_STRUCTS:
            raise ValueError(f"a header has more than {_MAX_STRUCTS} structs within one another")
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return {field: self.value(inner, level + 1) for field, inner in self.fields()}
        if kind in (_LIST, _SET):
            inner, count = self.list_header()
            self._elements((inner,), count, level)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            self._elements((kinds >> 4, kinds & 15), count, level)
        else:
            self._pass(self._width(kind, in_list))
        return None

    def _elements(self, kinds: tuple[int, ...], count: int, level: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self.value(kind, level + 1, in_list=True)

    def _width(self, kind: int, in_list: bool) -> int:
        """Return the bytes of a value of a plain kind."""
        if kind in (_TRUE, _FALSE):
            return int(in_list)
        if kind == _BINARY:
            return self._varint()
        if kind not in (_BYTE, _DOUBLE):
            raise ValueError(f"byte {self.at} of a header has the kind {kind}, which Thrift does not have")
        return 1 if kind == _BYTE else 8

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _pass(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError(self.at)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError(f"byte {self.at} of a header ends no number of 64 bits")

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
