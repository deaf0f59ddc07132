"""`trivium config`: what it shows fits a terminal, and every field is explained where it is defined."""

import json
import re
import sys

import pytest

from trivium.cli import main as entry
from trivium.cli.fields import fields_of
from trivium.cli.options import check_filters
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.config import leaves, to_tree
from trivium.plan.optimizer import Group
from trivium.tokens.config import TokensConfig

LOOKED_AT = ("tokens.vocabulary", "tokens.tokenizer")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trivium", "config", *words])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("113", 113), ("300", 120), (None, 100)])
@pytest.mark.parametrize("verb", ["show", "explain"])
def test_no_line_is_wider_than_the_terminal(
    say, monkeypatch: pytest.MonkeyPatch, verb: str, columns: str | None, widest: int
) -> None:
    """In a narrow terminal the longest paths wrap; in a pipe none does, so that grep finds every path."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    code, told, _ = say(verb)
    lines = told.splitlines()
    assert code == 0 and widest - 5 < max(map(len, lines)) <= widest
    section, field = "curate.repetition", "duplicate_paragraph_characters"
    if columns == "80":
        at = next(n for n, line in enumerate(lines) if f"{line} ".startswith(f"  {field} "))
        assert lines[at - 1].startswith(f"{section}.  ")
    else:
        assert any(line.startswith(f"{section}.{field}  ") for line in lines)


def test_long_values_go_on_in_the_next_line_and_lose_nothing(say) -> None:
    prompts = ["The function returns the", "If the argument is not a string, an exception is", "This module has"]
    _, told, _ = say("show", "generation.prompts", "--set", f"generation.prompts={json.dumps(prompts)}")
    assert "".join(line[line.index("  ") :].replace(" ", "") for line in told.splitlines()[1:]).count('"') == 6


def test_a_section_or_a_field_is_shown_alone_and_a_misspelt_one_is_refused(say) -> None:
    _, told, _ = say("show", "training.spikes")
    assert {line.split()[0].rpartition(".")[0] for line in told.splitlines()[1:]} == {"training.spikes"}
    code, _, error = say("explain", "training.lrr")
    assert code == 2 and "did you mean 'training.lr'?" in error
    for other in ("training.learning_rate", "lr"):  # as other systems call it, and without its section
        assert say("explain", other)[2].endswith("did you mean 'training.lr'?\n"), other
    assert "did you mean 'training'?" in say("show", "trainig")[2]
    assert say("explain", "shots_drawn")[2].endswith(f"; known: {', '.join(RunConfig.model_fields)}\n")


def test_a_bound_is_explained_where_it_is_more_than_what_any_whole_number_has() -> None:
    allowed = {field.path: field.allowed for field in fields_of(RunConfig)}
    assert allowed["plan.model.hidden"] == "whole number ≥ 1 ≤ 1e+06"
    assert allowed["training.steps"] == "whole number ≥ 1"


def test_every_field_of_a_run_is_explained_by_its_type_and_the_comment_beside_it() -> None:
    found = {field.path: field for field in fields_of(RunConfig)}
    values = {path for path, _ in leaves(to_tree(resolve(Given("demo"))))}
    assert {p for p in values if not p.startswith(tuple(f"{q}." for q in found))} <= found.keys()
    assert not [path for path, field in found.items() if not field.meaning]
    meaning = found["plan.optimizer.groups"].meaning
    assert all(name in meaning for name in Group.model_fields)
    assert found["training.lr"][1:] == ("number > 0", "peak learning rate")
    assert found["plan.zero"].allowed == "0, 1, 2, 3"
    assert found["plan.model.rope_scaling"].allowed == "null or the fields below"
    assert found["plan.batch.ramp.start"].meaning == "sequences of the first batches"
    above = "weights: at step 0; state: after the checkpoint's steps, with its moments and place in the data"
    assert found["training.start_with"].meaning == above


GREEDY = "generation.sampling.temperature=0"


@pytest.mark.parametrize(
    ("verb", "setting"),
    [
        ("tokenize", "curate.quality.words_low=60"),
        ("tokenize", "harvest.max_bytes=1000"),
        ("corpus curate", "harvest.max_bytes=1000"),
        ("data adopt PREFIX", "curate.quality.words_low=60"),
        ("train", "harvest.max_bytes=1000"),
        ("launch --print slurm", "curate.quality.words_low=60"),
    ],
)
def test_settings_of_a_corpus_that_is_made_are_refused_by_what_reads_it(
    verb: str, setting: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Otherwise the run's config would record settings with which its corpus was not made."""
    words = ["trivium", *verb.split(), "--out", str(tmp_path / "run"), "--set", "seed=3", "--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    path, section = setting.split("=")[0], setting.split(".")[0]
    told = capsys.readouterr().err
    assert ended.value.code == 2 and f"--set {path}: `trivium " in told
    assert told.rstrip().endswith(f"give it to `trivium corpus {section}`")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["train", "launch --print slurm"])
@pytest.mark.parametrize("field", [f"tokens.{name}" for name in TokensConfig.model_fields])
def test_settings_of_tokens_that_are_made_are_refused_but_what_a_model_s_rows_are_compared_with(
    verb: str, field: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    value = "demo" if field == "tokens.tokenizer" else "2048"
    words = ["trivium", *verb.split(), "--out", str(tmp_path / "run"), "--set", f"{field}={value}"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        entry.main()
    told = f"--set {field}: `trivium train` does not read this"
    assert (told in capsys.readouterr().err) == (field not in LOOKED_AT)


@pytest.mark.parametrize(
    ("setting", "law"),
    [
        ("curate.privacy.email=drop", "curate.filters is .*, without privacy; add it there"),
        ("curate.c4={sentences: 9}", "curate.filters is .*, without c4"),
        ("curate.selection.fraction=0.5", "`trivium .*` does not read this; give it to `trivium corpus step select`"),
        ("curate.dedup.shortest=3", "`trivium .*` does not read this; give it to `trivium corpus step dedup`"),
    ],
)
@pytest.mark.parametrize("verb", ["demo", "corpus curate", "corpus run demo"])
def test_settings_of_filters_that_a_curation_does_not_ask_are_refused(
    verb: str, setting: str, law: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    words = ["trivium", *verb.split(), "--out", str(tmp_path / "run"), "--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    told = capsys.readouterr().err
    assert ended.value.code == 2 and re.search(rf"--set {re.escape(setting.split('=')[0])}\S*: {law}", told)
    assert not (tmp_path / "run").exists()


def test_a_filter_that_is_asked_has_its_settings() -> None:
    sets = ["curate.filters=[gopher,privacy]", "curate.privacy.ip=keep", "curate.quality.words_low=9"]
    check_filters(sets, resolve(Given("demo", tuple(sets))).curate)


def test_nothing_is_called_as_python_calls_it() -> None:
    """A user who writes None after --set, as an explanation says, sets a string."""
    assert not [field for field in fields_of(RunConfig) if re.search(r"\bNone\b", field.meaning)]


@pytest.mark.parametrize("verb", ["corpus harvest", "corpus run demo", "demo"])
def test_settings_of_the_default_corpus_are_refused_where_files_are_read(
    verb: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "own.txt").write_text("A text.")
    words = ["trivium", *verb.split(), "--out", str(tmp_path / "run"), "--corpus", str(tmp_path / "own.txt")]
    monkeypatch.setattr(sys, "argv", [*words, "--set", "harvest.max_bytes=9", "--set", "harvest.longest=9"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2 and not (tmp_path / "run").exists()
    assert "--set harvest.max_bytes: `trivium " in capsys.readouterr().err


def test_configs_are_compared_field_by_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for new, code, text in (("demo", 0, "no field differs"), ("gpt-125m", 1, "plan.model.hidden: 128 -> 768")):
        monkeypatch.setattr(sys, "argv", ["trivium", "diff", "demo", new])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        assert int(ended.value.code or 0) == code and text in capsys.readouterr().out
