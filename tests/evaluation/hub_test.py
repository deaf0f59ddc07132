"""Rows from the Hub, read with its library from local folders."""

import json
import sys

import pytest

pytest.importorskip("datasets", reason="datasets (extra eval) is not installed")

import datasets

from evaluation.benchmark_test import HANS
from trivium.errors import DataError, MachineError
from trivium.evaluation.benchmark import prepare
from trivium.evaluation.config import BenchmarkConfig
from trivium.evaluation.tasks.definition import Hub, definition
from trivium.evaluation.tasks.rows import Rows, hub_rows


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Create a data set with two splits, without network access."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hans"
    folder.mkdir()
    for split, rows in (("validation", HANS[:20]), ("train", HANS[20:50])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def at(place, **splits):
    of = definition("hans")
    return of.model_copy(update={"hub": Hub(**{"path": str(place), "asked": "validation", **splits})})


def test_hub_rows_give_the_same_questions_as_files(hub):
    config = BenchmarkConfig(shots=(1,))
    of = at(hub, shots="train")
    found = hub_rows(of)
    assert (found.asked_from, found.shots_from) == (f"{hub}, validation", f"{hub}, train")
    local = prepare(of, Rows(HANS[:20], HANS[20:50], "here", "here"), config).task
    task = prepare(of, found, config).task
    assert (task.examples, task.pool) == (local.examples, local.pool)
    assert hub_rows(at(hub)).shots is None


def test_missing_hub_data_is_named_with_remedy(hub, tmp_path):
    for of in (at(hub, shots="test"), at(tmp_path / "none")):
        with pytest.raises(DataError, match=r"did not give .* for task hans: .*--data DIR"):
            hub_rows(of)


def test_missing_library_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MachineError, match=r"'\.\[eval\]'.* --data DIR"):
        hub_rows(definition("hans"))
