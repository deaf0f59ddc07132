"""Laws of the user's own text: given once, followed while it is there, never mistaken for the default corpus."""

from pathlib import Path

import pytest

from trivium.cli.corpus import CURATE, HARVEST, _curate_lines
from trivium.cli.options import open_run
from trivium.cli.run_config import Given
from trivium.cli.stage import is_current
from trivium.corpus.publish.output import blend
from trivium.errors import ConfigError, DataError
from trivium.provenance import publishing

COUNTS = {"documents": 1, "text_bytes": 9}


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


def test_only_files_that_are_read_make_another_harvest(tmp_path: Path, text: Path):
    harvested(tmp_path / "run", text)
    (text / ".DS_Store").write_text("1")
    (text / "notes.pdf").write_text("1")
    assert is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))
    (text / "more.txt").write_text("1")
    assert not is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))


def test_a_file_behind_a_linked_folder_is_followed_too(tmp_path: Path, text: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("some text")
    (text / "linked").symlink_to(tmp_path / "elsewhere")
    harvested(tmp_path / "run", text)
    (tmp_path / "elsewhere" / "b.txt").write_text("some other text")
    assert not is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))


def test_the_same_text_by_a_relative_name_is_the_same(tmp_path: Path, text: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harvested(tmp_path / "run", Path("text"))
    assert is_current(HARVEST, open_run(tmp_path / "run", Given("demo")))


def test_a_link_to_a_file_of_another_name_is_read_by_its_own(tmp_path: Path):
    (tmp_path / "blob").write_text("some text")
    (tmp_path / "a.txt").symlink_to(tmp_path / "blob")
    harvested(tmp_path / "run", tmp_path / "a.txt")
    later = open_run(tmp_path / "run", Given("demo"))
    assert later.corpus == tmp_path / "a.txt" and is_current(HARVEST, later)


def test_what_is_written_is_never_read_as_text_the_next_time(tmp_path: Path, text: Path):
    with pytest.raises(ConfigError, match="lies in --data"):
        open_run(text / "runs" / "mine", Given("demo"), corpus=text)
    assert open_run(text / ".runs" / "mine", Given("demo"), corpus=text).corpus == text


def test_a_corpus_may_be_an_address(tmp_path: Path, text: Path):
    address = f"file://{text}"
    run = open_run(tmp_path / "run", Given("demo"), corpus=address)
    with publishing(tmp_path / "run" / "harvest", **HARVEST.what(run)):
        pass
    later = open_run(tmp_path / "run", Given("demo"))
    assert later.corpus == address and is_current(HARVEST, later)
    (text / "a.txt").write_text("some other text")
    assert is_current(HARVEST, later)  # an address that is not named again is not asked again
    (text / "a.txt").unlink()
    assert is_current(HARVEST, later)  # out of reach, and harvested before
    with pytest.raises(DataError, match="cannot be read"):
        HARVEST.what(open_run(tmp_path / "other", Given("demo"), corpus="nosuch://bucket/x"))


def test_a_curation_names_the_sources_that_its_blend_leaves_out():
    said = _curate_lines({"funnel": [], "blend": blend(dict.fromkeys("abc", COUNTS), {"a": 1})})
    assert said[-1] == "never to be trained on, as of weight 0 (curate.blend): b, c"
    assert len(_curate_lines({"funnel": [], "blend": blend({"a": COUNTS}, {})})) == len(said) - 1
