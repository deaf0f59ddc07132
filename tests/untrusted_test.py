"""Foreign files: special files, too large files and deeply nested content are rejected."""

import json
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from trivium.errors import DataError
from trivium.untrusted import MAX_NESTING_LEVELS, UnfitFile, open_regular, parse_json, read_bytes, read_json, read_text


def special_files(folder):
    """Create paths that must not be read, with the word that names each."""
    os.mkfifo(folder / "fifo")
    (folder / "to-fifo").symlink_to(folder / "fifo")
    (folder / "endless").symlink_to("/dev/zero")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(folder / "socket"))
    listening.close()
    return {"fifo": "a FIFO", "to-fifo": "a FIFO", "endless": "a character device", "socket": "a socket"}


def test_only_regular_files_are_opened(tmp_path):
    for name, kind in special_files(tmp_path).items():
        with pytest.raises(UnfitFile, match=f"{name}: it is {kind}, not a regular file") as caught:
            open_regular(tmp_path / name)
        assert isinstance(caught.value, OSError) and isinstance(caught.value, DataError)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_rejected_files_leave_no_open_descriptor(tmp_path):
    special_files(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("fifo", "endless", "."):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_file_above_limit_is_rejected(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_bytes(path, 10) == b"x" * 10
    with pytest.raises(UnfitFile, match=r"it has more than 9 B, the limit"):
        read_bytes(path, 9)


def test_allocation_follows_file_size_not_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    tracemalloc.start()
    try:
        assert read_bytes(path, 1 << 30) == b"x" * 10
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_file_of_unknown_size_is_read_up_to_limit(tmp_path, monkeypatch):
    stated = Path("/proc/self/status")
    assert stated.stat().st_size == 0
    assert read_bytes(stated).startswith(b"Name:")
    path = tmp_path / "a"
    path.write_bytes(b"x" * (3 << 20))
    whole = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result([*whole(file)[:6], 1, *whole(file)[7:]]))
    assert len(read_bytes(path)) == len(read_bytes(path, 3 << 20)) == 3 << 20
    for limit in (0, 1, 2 << 20, (3 << 20) - 1):
        with pytest.raises(UnfitFile):
            read_bytes(path, limit)


def test_byte_order_mark_is_removed(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("\ufeff{}".encode())
    assert read_text(path) == "{}" and read_json(path) == {}


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": [2.5, -0.0, 1e400, NaN]}', '"\\ud800"', "12345678901234567890123", '"\u2028"', " [] "]
)
def test_json_is_read_as_by_the_standard_library(text):
    assert repr(parse_json(text)) == repr(parse_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nan", "[1] x", "'a'", b"\xff", "1" * 5000])
def test_invalid_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize("hooks", [{}, {"parse_float": float}])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_in_every_reader(opened, closed, hooks):
    def nested(levels):
        return opened * levels + "1" + closed * levels

    parse_json(nested(MAX_NESTING_LEVELS), **hooks)
    # only the standard library accepts lone surrogates; brackets in strings are not nesting
    flat = json.dumps({"a": "[" * 300 + '\\"', "b": "\ud800"})
    assert parse_json(flat, **hooks) == json.loads(flat)
    for levels in (MAX_NESTING_LEVELS + 1, 480, 100_000):
        with pytest.raises(ValueError, match=f"nested more than {MAX_NESTING_LEVELS} levels"):
            parse_json(nested(levels), **hooks)
