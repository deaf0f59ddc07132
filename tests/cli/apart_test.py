"""Work done apart leaves its results on disk and its errors here."""

import os
from pathlib import Path

import pytest

from trivium.cli.ending import apart
from trivium.errors import DataError, TriviumError


def test_work_is_done_in_another_process(tmp_path: Path) -> None:
    apart(lambda: (tmp_path / "pid").write_text(str(os.getpid())) and None)
    assert int((tmp_path / "pid").read_text()) != os.getpid()


def test_an_error_keeps_its_kind_and_text() -> None:
    def fail() -> None:
        raise DataError("corpus.txt is empty: 0 bytes")

    with pytest.raises(DataError, match="corpus.txt is empty: 0 bytes"):
        apart(fail)


def test_an_unknown_error_names_its_kind() -> None:
    with pytest.raises(TriviumError, match="ZeroDivisionError"):
        apart(lambda: 1 // 0 and None)


def test_a_killed_process_is_reported() -> None:
    with pytest.raises(TriviumError, match="ended with -9"):
        apart(lambda: os.kill(os.getpid(), 9))
