"""Targets of commands, and the search for a checkpoint's tokenizer."""

from pathlib import Path

import pytest

from trivium.errors import DataError
from trivium.interchange.target import opened, tokenizer_near
from trivium.provenance import write_json


def test_tokenizer_is_found_with_the_trainings_tokens(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    saved = run / "training" / "checkpoints" / "step-00000001"
    saved.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "tokenizer.json").touch()
    assert tokenizer_near(saved) is None
    write_json(run / "training" / "run.json", {"tokens": str(elsewhere)})
    assert tokenizer_near(saved) == tokenizer_near(run) == elsewhere / "tokenizer.json"


def test_moved_run_has_its_own_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    write_json(tmp_path / "training" / "run.json", {"tokens": str(tmp_path / "before" / "tokens")})
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "tokenizer.json").touch()
    assert tokenizer_near(tmp_path) == tmp_path / "tokens" / "tokenizer.json"


def test_file_is_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, what in (("file", "is a file"), ("none", "does not exist")):
        with (
            pytest.raises(DataError, match=f"{name} {what}; name a run directory, a checkpoint, or a folder of"),
            opened(tmp_path / name),
        ):
            pass
