"""`trivium evaluate TARGET` and `trivium incontext`: what is asked of which model, and what is refused."""

import json
import shutil

import pytest

from evaluation.benchmark_test import HANS
from evaluation.models import TOKENIZER, plan_of, write_checkpoint
from trivium.checkpoint.load import Checkpoint
from trivium.cli.benchmarks import config_of
from trivium.cli.evaluate import EVALUATE
from trivium.cli.main import command_line
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import Run
from trivium.cli.workspace import Workspace
from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.evaluation.hans import HEURISTICS
from trivium.evaluation.tasks.passages import VERSIONS
from trivium.interchange.export import export_hf
from trivium.interchange.target import opened
from trivium.provenance import STAMP, describe, write_json
from trivium.report.verdicts import significant_scores


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A run with two checkpoints and a tokenizer, a folder of Hugging Face, and rows of two tasks."""
    root = tmp_path_factory.mktemp("scene")
    run = root / "run"
    (run / "training").mkdir(parents=True)
    for step in (4, 8):
        newest = write_checkpoint(run / "training", plan_of(sequence=64), step=step)
    (run / "tokens").mkdir()
    (run / "training" / "tokenizer.json").rename(run / "tokens" / "tokenizer.json")
    export_hf(Checkpoint.open(newest), root / "hf", tokenizer=run / "tokens" / "tokenizer.json")
    data = root / "data"
    boolq = [{"passage": f"Passage {n} is long.", "question": f"is it {n}", "label": n % 2} for n in range(40)]
    for name, rows in (("hans/validation.jsonl", HANS), ("boolq/validation.jsonl", boolq)):
        (data / name).parent.mkdir(parents=True)
        (data / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root


def trivium(*words):
    command_line()([str(w) for w in words], prog_name="trivium", standalone_mode=False)


def read(path):
    return json.loads(path.read_text())


def test_a_run_is_asked_and_a_checkpoint_and_a_folder_of_hugging_face_answer_alike(scene, tmp_path, capsys):
    options = ("--data", scene / "data", "--limit", "6", "--shots", "0,2", "--set", "resamples=20")
    newest = scene / "run" / "training" / "checkpoints" / "step-00000008"
    found = {}
    for name, place in (("run", scene / "run"), ("checkpoint", newest), ("hf", scene / "hf")):
        out = tmp_path / f"{name}.json"
        trivium("evaluate", place, "--tasks", "mt-nlg", *options, "--json", out)
        found[name] = read(out)
    assert found["run"]["tasks"] == found["checkpoint"]["tasks"]
    for task, by_shots in found["run"]["tasks"].items():
        for shots, result in by_shots.items():
            assert found["hf"]["tasks"][task][shots]["accuracy"] == result["accuracy"]
            assert result["n"] == 6
    assert set(found["run"]["tasks"]) == {"hans", "boolq"} and "lambada" in found["run"]["skipped"]
    assert read(scene / "run" / "tasks" / "results.json")["model"]["step"] == 8
    assert "SKIPPED lambada" in capsys.readouterr().out


def test_every_checkpoint_gives_a_point_and_any_layout_the_same_answers(scene, tmp_path):
    words = ("--tasks", "hans", "--data", scene / "data", "--limit", "8", "--shots", "1", "--set", "resamples=20")
    trivium("evaluate", scene / "run", *words, "--every", "--json", tmp_path / "alone.json")
    trivium("evaluate", scene / "run", *words, "--set", "layout.tensor=2", "--json", tmp_path / "two.json")
    alone, two = read(tmp_path / "alone.json"), read(tmp_path / "two.json")
    assert [(p["step"], p["tokens"]) for p in alone["series"]] == [(4, 4000), (8, 8000)]
    assert two["tasks"]["hans"]["1"]["accuracy"] == alone["tasks"]["hans"]["1"]["accuracy"]


def test_what_was_measured_is_not_lost_with_a_later_checkpoint_that_is_damaged(scene, tmp_path):
    run = shutil.copytree(scene / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tasks", "incontext"))
    with opened(run) as target:
        newest = target.newest
    for part in newest.glob("**/*"):
        if part.is_file() and part.name != "manifest.json":
            part.write_bytes(part.read_bytes()[:-8])
    asked = ("--data", scene / "data", "--limit", "4", "--every", "--set", "resamples=5")
    with pytest.raises(CheckpointError):
        trivium("evaluate", run, "--tasks", "hans", "--shots", "0", *asked)
    found = read(run / "tasks" / "results.json")
    assert [p["step"] for p in found["series"]] == [4] and found["model"]["step"] == 4
    with pytest.raises(CheckpointError):
        trivium("incontext", run, "--shots", "0", *asked[:5], "--set", "draws=1", "--set", "compare_at=1")
    assert [m["model"]["step"] for m in read(run / "incontext" / "results.json")["models"]] == [4]


def test_results_of_other_tasks_and_shots_of_the_same_checkpoint_stay(scene, tmp_path, capsys):
    """And nothing that was asked goes away: what cannot stay is set aside, and said."""
    run = shutil.copytree(scene / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tasks", "incontext"))
    kept = run / "tasks" / "results.json"

    def ask(task, shots, limit, *more, place=run):
        words = ("--data", scene / "data", "--limit", limit, "--set", "resamples=5", *more)
        trivium("evaluate", place, "--tasks", task, "--shots", shots, *words, "--json", tmp_path / "own.json")
        return read(tmp_path / "own.json")["tasks"]

    hans, boolq = ask("hans", "0", 6, "--every"), ask("boolq", "0", 6)
    assert set(boolq) == {"boolq"}  # the user's file has this call's alone
    more = ask("boolq", "1", 6)
    again = ask("boolq", "0", 6)
    together = {**hans, "boolq": again["boolq"] | more["boolq"]}
    found = read(kept)
    assert found["tasks"] == together and again == boolq
    assert [p["step"] for p in found["series"]] == [4, 8]
    assert not list(kept.parent.glob("results.previous*")) and "earlier results" not in capsys.readouterr().out
    ask("hans", "1", 6, "--every")
    assert [sorted(p["tasks"]["hans"]) for p in read(kept)["series"]] == [["0", "1"], ["0", "1"]]
    assert not list(kept.parent.glob("results.previous*"))

    whole = read(kept)
    fewer = ask("hans", "0", 4)  # not the same questions
    assert read(kept)["tasks"]["hans"]["0"] == fewer["hans"]["0"]
    assert read(kept)["tasks"]["boolq"] == whole["tasks"]["boolq"]
    assert read(kept.with_name("results.previous.json")) == whole
    assert "asked otherwise, are now in" in capsys.readouterr().out
    before = read(kept)
    older = ask("boolq", "0", 6, place=run / "training" / "checkpoints" / "step-00000004")
    assert read(kept)["tasks"] == older and read(kept)["model"]["step"] == 4
    assert read(kept.with_name("results.previous-2.json")) == before
    kept.write_text("{")
    ask("boolq", "0", 6)
    assert kept.with_name("results.previous-3.json").read_text() == "{" and read(kept)["model"]["step"] == 8


def test_a_study_of_another_task_is_set_aside(scene, tmp_path):
    run = shutil.copytree(scene / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tasks", "incontext"))
    kept = run / "incontext" / "results.json"
    for task in ("hans", "hans", "boolq"):
        few = ("--limit", 6, "--shots", "0", "--set", "compare_at=1", "--set", "draws=1", "--set", "orders=1")
        trivium("incontext", run, "--task", task, "--data", scene / "data", *few)
    assert read(kept)["task"] == "boolq"
    (aside,) = kept.parent.glob("results.previous*")
    assert read(aside)["task"] == "hans"


def test_a_study_of_several_models_is_kept_in_the_last_of_them_that_is_of_a_run(scene, tmp_path):
    run = shutil.copytree(scene / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tasks", "incontext"))
    few = ("--limit", 6, "--shots", "0", "--set", "compare_at=1", "--set", "draws=1", "--set", "orders=1")
    trivium("incontext", run, scene / "hf", "--data", scene / "data", *few)
    assert [m["model"]["step"] for m in read(run / "incontext" / "results.json")["models"]] == [8, 0]


def test_a_study_of_shots_is_kept_in_the_run(scene, tmp_path):
    settings = ("compare_at=1", "draws=2", "orders=1")
    trivium(
        "incontext", scene / "run", "--data", scene / "data", "--limit", "8", "--shots", "0,1",
        *(w for s in settings for w in ("--set", s)), "--json", tmp_path / "out.json",
    )  # fmt: skip
    found = read(tmp_path / "out.json")
    assert found == read(scene / "run" / "incontext" / "results.json")
    (model,) = found["models"]
    assert set(model["shots"]) == {"0", "1"} and "same heuristic" in model["source"]


def test_what_is_missing_is_named(scene, tmp_path):
    with pytest.raises(DataError, match="no rows of task piqa"):
        trivium("evaluate", scene / "run", "--tasks", "piqa", "--data", scene / "data")
    with pytest.raises(ConfigError, match="there is no such task"):
        trivium("evaluate", scene / "run", "--tasks", "bolq", "--data", scene / "data")
    with pytest.raises(DataError, match="does not exist"), opened(tmp_path / "none", None):
        pass
    with pytest.raises(CheckpointError, match="holds no checkpoint"), opened(tmp_path, None):
        pass
    write_checkpoint(tmp_path / "bare" if (tmp_path / "bare").mkdir() is None else tmp_path, plan_of())
    (tmp_path / "bare" / "tokenizer.json").unlink()
    with (
        pytest.raises(CheckpointError, match="has no tokenizer.json with it"),
        opened(tmp_path / "bare" / "checkpoints", None),
    ):
        pass
    TOKENIZER.save(tmp_path / "words.json")
    with opened(tmp_path / "bare" / "checkpoints", str(tmp_path / "words.json")) as target:
        assert target.newest.name == "step-00000004" and target.run is None


def test_options_become_a_config_and_wrong_ones_are_refused():
    config = config_of("0,3,few", 5, ["wording=harness", "layout.tensor=2"])
    assert (config.shots, config.limit, config.wording, config.layout.tensor) == ((0, 3, "few"), 5, "harness", 2)
    for shots, sets, message in (("0,x", [], "'x' is no number"), ("", [], "shots"), (None, ["word=1"], "word")):
        with pytest.raises(ConfigError, match=message):
            config_of(shots, None, sets)


def test_questions_that_stand_in_the_runs_corpus_are_told_and_counted_apart(scene, tmp_path, capsys):
    run = shutil.copytree(scene / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tasks", "incontext"))
    texts = [f"Before. {HANS[4]['premise']} After it more follows.", "Else " * 50]
    documents = (Document(f"d{n}", t, "web") for n, t in enumerate(texts))
    write_documents(run / "curated" / "documents", documents)
    words = ("--tasks", "hans", "--data", scene / "data", "--shots", "0", "--set", "resamples=20")
    trivium("evaluate", run, *words, "--json", tmp_path / "out.json")
    found = read(tmp_path / "out.json")["tasks"]["hans"]["0"]["contamination"]
    assert (found["n"], found["clean"]["n"]) == (1, 79)
    told = capsys.readouterr().out.splitlines()
    row = next(line for line in told if line.lstrip().startswith("hans"))
    assert max(len(line) for line in told if "results in" not in line) <= 120
    assert any(line.startswith("  in corpus: questions that stand") for line in told)
    assert "1 (" in row and "51.6 %" in row  # beside the paper's


def test_an_evaluation_is_done_again_when_the_version_of_a_task_in_it_was_raised(tmp_path, monkeypatch):
    for name in EVALUATE.reads:
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / STAMP, describe(verb=name, config={}, inputs={}))
    both, one = (Run(resolve(Given("demo", sets)), Workspace(tmp_path))
                 for sets in ((), ("evaluation.tasks=[continuation]",)))  # fmt: skip
    before = [EVALUATE.what(run) for run in (both, one)]
    assert [EVALUATE.what(run) for run in (both, one)] == before
    monkeypatch.setitem(VERSIONS, "last_word", VERSIONS["last_word"] + 1)
    after = [EVALUATE.what(run) for run in (both, one)]
    assert after[0] != before[0] and after[1] == before[1]


def test_predictions_of_any_model_give_the_table_of_hans(tmp_path, capsys):
    blocks = [
        {"first": 4 * n, "last": 4 * n + 3, "heuristic": h, "subcase": f"s{n}", "gold_label": label}
        for n, (h, label) in enumerate((h, label) for h in HEURISTICS for label in ("entailment", "non-entailment"))
    ]
    (tmp_path / "hans").mkdir()
    (tmp_path / "hans" / "official_pairid_map.json").write_text(json.dumps(blocks))
    (tmp_path / "said.txt").write_text("1111" + 5 * "1000")
    trivium("evaluate", tmp_path / "said.txt", "--data", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["entailment", "100.0", "25.0", "25.0"]
    assert lines[2].split() == ["non-entailment", "75.0", "75.0", "75.0"]
    with pytest.raises(ConfigError, match="need --data DIR"):
        trivium("evaluate", tmp_path / "said.txt")
    for option in (("--tasks", "hans"), ("--limit", 3), ("--shots", "0"), ("--every",), ("--set", "confidence=0.5")):
        with pytest.raises(ConfigError, match=f"{option[0]}: for a model that is asked"):
            trivium("evaluate", tmp_path / "said.txt", "--data", tmp_path, *option)


@pytest.mark.parametrize("verb", ["evaluate", "incontext"])
def test_results_that_could_not_be_written_are_refused_before_a_model_is_asked(scene, tmp_path, verb):
    (tmp_path / "file").write_text("")
    for place, error, message in (
        (tmp_path, DataError, "is a folder"),
        (tmp_path / "file" / "out.json", DataError, "does not exist"),
        ("-", ConfigError, "goes to standard output"),
    ):
        with pytest.raises(error, match=message):  # of a target that is not there nothing is said
            trivium(verb, scene / "no_run", "--data", scene / "data", "--json", place)


def test_prompts_that_were_cut_are_told_of_all_that_were_asked(scene, tmp_path, capsys):
    words = ("--tasks", "boolq", "--data", scene / "data", "--limit", 5, "--shots", "0,few")
    trivium("evaluate", scene / "run", *words, "--json", tmp_path / "out.json")
    few = read(tmp_path / "out.json")["tasks"]["boolq"]["few"]
    assert few["truncated"] == 10 and few["n"] == 5  # each question once for each of its choices
    told = capsys.readouterr().out
    assert "cut: 10 of 20 prompts, one for each choice, were longer than the model's 64 tokens" in told
    sets = ("--set", "draws=1", "--set", "orders=1", "--set", "compare_at=1")
    trivium("incontext", scene / "run", *words[2:6], "--task", "boolq", "--shots", "0,9", *sets)
    told = capsys.readouterr().out
    assert [line.split()[-2:] for line in told.splitlines() if line.split()[:1] == ["shots"]] == [
        ["0.0", "%"],
        ["100.0", "%"],
    ]
    assert "cut: so many of the prompts, one for each choice, were longer than the model's 64 tokens" in told


def test_the_table_has_the_scores_that_the_report_calls_significant():
    """One in twenty of many scores is above chance by luck: both correct for their number."""
    known = {"interval": [0.52, 0.68], "chance": 0.5, "unigram": 0.5, "unigram_p": 0.01, "confidence": 0.95, "n": 150}
    known |= {"accuracy": 0.6, "nats_per_byte": 1.4, "unigram_nats_per_byte": 1.9, "truncated_fraction": 0.0}
    sure = known | {"accuracy": 0.9, "interval": [0.84, 0.94], "unigram_p": 1e-20}
    tasks = {"sure": {"0": sure}, **{f"lucky{n}": {"0": known} for n in range(9)}}
    _, *rows, others = EVALUATE.summary({"tasks": tasks, "skipped": {}, "model": {"sequence": 128}})
    assert [row.split()[0] for row in rows] == ["sure"]
    assert others.startswith(
        "  not significantly better than chance and token frequencies, corrected for 10 scores: luc"
    )
    assert significant_scores(tasks).keys() == {("sure", "0")}


@pytest.mark.parametrize("share", [0.0, 0.06])
def test_prompts_of_held_out_questions_that_were_cut_are_told_too(share):
    known = {
        "accuracy": 0.5,
        "interval": [0.4, 0.6],
        "chance": 0.25,
        "unigram": 0.24,
        "unigram_p": 0.001,
        "confidence": 0.95,
        "n": 100,
    }
    known |= {"nats_per_byte": 1.4, "unigram_nats_per_byte": 1.9}
    scores = {"0": {**known, "truncated_fraction": 0.0}, "3": {**known, "truncated_fraction": share}}
    header, *rows = EVALUATE.summary({"tasks": {"continuation": scores}, "skipped": {}, "model": {"sequence": 128}})
    assert header.split()[-1] == "cut"
    assert [row.split()[-2] for row in rows[:2]] == ["0.0", f"{100 * share:.1f}"]
    told = ["cut: so many of the prompts, one for each choice, were longer than the model's 128 tokens and lost "]
    assert [row.strip()[: len(told[0])] for row in rows[2:]] == told * bool(share)
