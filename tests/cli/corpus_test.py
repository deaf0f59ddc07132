"""Laws of the user's own text: given once, followed while it is there, never mistaken for the default corpus."""

from pathlib import Path

import pytest

from trivium.cli.corpus import CURATE, HARVEST, corpus_files
from trivium.cli.options import open_run
from trivium.cli.run_config import Given
from trivium.cli.stage import is_current
from trivium.provenance import publishing


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("some text")
    return folder


def harvested(out: Path, text: Path) -> None:
    run = open_run(out, Given("demo"), corpus=text)
    with publishing(out / "harvest", **HARVEST.what(run)):
        pass


def test_the_corpus_is_given_only_once(tmp_path: Path, text: Path):
    harvested(tmp_path / "run", text)
    later = open_run(tmp_path / "run", Given("demo"))
    assert later.corpus == text and is_current(HARVEST, later)


def test_another_corpus_is_another_harvest(tmp_path: Path, text: Path):
    harvested(tmp_path / "run", text)
    other = tmp_path / "other.txt"
    other.write_text("other text")
    assert not is_current(HARVEST, open_run(tmp_path / "run", Given("demo"), corpus=other))


def test_a_changed_file_is_harvested_again(tmp_path: Path, text: Path):
    harvested(tmp_path / "run", text)
    (text / "a.txt").write_text("some other text")
    assert not is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))


def test_text_that_was_moved_away_after_its_harvest_is_not_missed(tmp_path: Path, text: Path):
    harvested(tmp_path / "run", text)
    text.rename(tmp_path / "elsewhere")
    assert is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))


@pytest.mark.parametrize("judges", [True, False])
def test_a_classifier_trained_again_under_its_name_curates_again_where_it_judges(
    tmp_path: Path, text: Path, judges: bool
):
    model = tmp_path / "model.npz"
    model.write_bytes(b"one")
    harvested(tmp_path / "run", text)
    filters = '["language", "classifier"]' if judges else '["language"]'
    sets = (f"curate.classifier.model={model}", f"curate.filters={filters}")
    run = open_run(tmp_path / "run", Given("demo", sets))
    with publishing(tmp_path / "run" / "curated", **CURATE.what(run)):
        pass
    assert is_current(CURATE, run)
    model.write_bytes(b"two")
    assert is_current(CURATE, run) != judges


def test_other_texts_to_decontaminate_against_curate_again(tmp_path: Path, text: Path):
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"text": "one"}')
    harvested(tmp_path / "run", text)
    run = open_run(tmp_path / "run", Given("demo", (f"curate.decontamination.against={bench}",)))
    assert run.config.curate.decontamination.against == (str(bench),)
    with publishing(tmp_path / "run" / "curated", **CURATE.what(run)):
        pass
    assert is_current(CURATE, run)
    bench.write_text('{"text": "two"}')
    assert not is_current(CURATE, run)


def test_a_run_without_a_corpus_is_of_the_default_one(tmp_path: Path):
    assert open_run(tmp_path / "run", Given("demo")).corpus is None


def test_a_folder_is_read_with_its_folders_in_a_fixed_order(tmp_path: Path, text: Path):
    (text / "b").mkdir()
    (text / "b" / "c.txt").write_text("")
    (text / "Z.txt").write_text("")
    names = [p.relative_to(text).as_posix() for p in corpus_files(text)]
    assert names == sorted(names) and len(names) == 3
    assert list(corpus_files(text / "a.txt")) == [text / "a.txt"]
