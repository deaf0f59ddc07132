"""JSON lines end with a line feed and nothing that a text may contain."""

import io
import json
import os
import random

import pytest

from trivium import jsonlines
from trivium.errors import DataError
from trivium.evaluation.tasks.items import read_items
from trivium.evaluation.tasks.rows import read_json_lines
from trivium.jsonlines import Line, Row, parse_line, read_lines, read_rows, read_values, split_lines, text_lines
from trivium.report.collect import _lines, _whole_lines
from trivium.serving.prompts import read_prompts
from trivium.training import metrics

# JSON allows all of these unescaped inside a string, but `str.splitlines` splits at each.
SEPARATORS = "a\u2028b\u2029c\u0085d\x7fe"
BOM = "\ufeff"


def rows_of(path):
    return [row for row, _ in read_rows(path, remedy="give another")]


READERS = {
    "rows": (rows_of, {"a": SEPARATORS}),
    "tasks": (read_json_lines, {"a": SEPARATORS}),
    "items": (
        lambda path: [item._asdict() for item in read_items(path)],
        {"id": "1", "document": "d", "text": SEPARATORS},
    ),
    "prompts": (
        lambda path: [{"prompt": prompt} for prompt in read_prompts(str(path)).prompts],
        {"prompt": SEPARATORS},
    ),
    "metrics": (metrics.read, {"step": 1, "cause": SEPARATORS}),
    "events": (lambda path: list(_whole_lines(path)), {"event": "x", "cause": SEPARATORS}),
    "report": (lambda path: list(_lines(path, dict)), {"a": SEPARATORS}),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", BOM])
@pytest.mark.parametrize("name", READERS)
def test_readers_accept_unicode_separators_and_byte_order_marks(tmp_path, name, mark, ends):
    read, row = READERS[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes((mark + json.dumps(row, ensure_ascii=False) + ends + ends).encode())
    assert read(path) == [row]


def test_line_numbers_start_at_1_and_count_blank_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n\n \r\n2")
    assert list(read_rows(path, remedy="")) == [Row(1, 1), Row(2, 4)]
    assert split_lines(path.read_bytes()) == [b"1", b"2"]
    path.write_bytes(b'\xef\xbb\xbf{"a":\r1}\n')  # a carriage return is whitespace in JSON
    assert split_lines(path.read_bytes()) == [b'{"a":\r1}']
    assert list(read_lines(path.open("rb"))) == [Line(b'{"a":\r1}', 1)]
    assert text_lines("a\r\n\nb\u2028c\n") == ["a", "", "b\u2028c"] and text_lines("") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{}\n{"a": }', r"a\.jsonl, line 2, column 7: '\{\"a\": \}' cannot be read as JSON \(Expecting value\); mend"),
        (b"{}\n\n[\x1b]", r"line 3, column 2: '\[\\u001b\]' cannot be read"),
        (b'{}\n"\xff"', "line 2, byte 2: the line is not UTF-8"),
        (b"{}\n" + b"[" * 300, "line 2, column 201: .*nested more than 200 levels"),
        (b"1" * 5000, "line 1: Exceeds the limit"),
        (b"{}\n" + b" " * 90 + b"1", "line 2 has more than 90 B"),
    ],
)
def test_unreadable_line_is_named_by_file_line_and_column(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(path, remedy="mend it", longest_bytes=90 if b"  " in content else 1 << 20))


def test_long_line_is_rejected_before_its_end():
    class Endless(io.RawIOBase):
        def readline(self, size=-1):
            assert 0 < size <= 101
            return b"x" * size

    with pytest.raises(ValueError, match="line 1 has more than 100 B"):
        next(read_lines(Endless(), 100))
    assert list(read_lines(io.BytesIO(b"x" * 100 + b"\n"), 100)) == [Line(b"x" * 100, 1)]


LINES = [
    b'{"a": 1}',
    b"",
    b"  ",
    b'{"a": 2}\r',
    b'{"a"',
    b": 3}",
    b"4,5",
    b"nan",
    b'"\xff"',
    b"[6]",
    b'{"b": 7}, {"b": 8}',
]


@pytest.mark.parametrize("seed", range(20))
def test_values_of_blocks_are_those_of_single_lines(seed: int) -> None:
    draw = random.Random(seed)
    data = (BOM.encode() if seed % 2 else b"") + b"\n".join(draw.choices(LINES, k=30)) + b"\n" * (seed % 3 == 0)

    def alone(line: Line) -> object:
        try:
            return parse_line(line)
        except ValueError as error:
            return str(error)

    expected = [alone(line) for line in read_lines(io.BytesIO(data))]
    for size in (1, 7, 40, 1000):
        found = list(read_values(io.BytesIO(data), size))
        assert [str(value) if isinstance(value, ValueError) else value for value in found] == expected


def test_a_long_line_without_an_end_is_rejected_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "LONGEST_LINE_BYTES", 100)
    with pytest.raises(ValueError, match="line 2 has more than 100 B"):
        list(read_values(io.BytesIO(b"1\n" + b"x" * 200), 10))


@pytest.mark.parametrize("name", ["rows", "tasks", "items", "prompts", "report"])
def test_readers_do_not_block_on_fifo(tmp_path, name):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="it is a FIFO, not a regular file"):
        READERS[name][0](tmp_path / "a.jsonl")
