"""`trivium judge` and `trivium judge meta`, from files to tables. All texts and scores here are made."""

import json
import math
import re

import numpy as np
import pytest

from evaluation.judges.stub import completion, serving
from evaluation.models import plan_of, write_checkpoint
from trivium.cli.main import command_line
from trivium.errors import ConfigError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.requests import Request

SYSTEMS, SEGMENTS, NOISE = 4, 100, 0.7
FEW = ["--set", "resamples=200"]


def run(*words):
    command_line()(["judge", *map(str, words)], prog_name="trivium", standalone_mode=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Made rows, human scores of variance 1, and a judge's answers: human scores plus noise, as numbers to 100."""
    folder = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(5)
    human = rng.normal(size=(SYSTEMS, SEGMENTS))
    judge = 50 + 10 * (human + NOISE * rng.normal(size=human.shape))
    rows, gold, answers = [], [], {}
    for (s, n), value in np.ndenumerate(human):
        row = {"system": f"S{s}", "segment": str(n), "source": f"Source {n}.", "output": f"Text {s}-{n}."}
        rows.append(row)
        gold.append({"system": row["system"], "segment": row["segment"], "score": float(value)})
        answers[row["output"]] = f"{judge[s, n]:.2f}"
    for name, lines in (("rows", rows), ("gold", gold)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, answers


def reply_with(answers):
    return lambda body, _: completion(answers[re.search(r"Text \d+-\d+\.", body["messages"][-1]["content"])[0]])


def asked(folder, url, *more):
    run(folder / "rows.jsonl", "--endpoint", url, "--model-name", "made", "--out", folder / "judged", *more)


def test_stub_judge_with_known_noise_is_recovered_within_its_interval(study, capsys):
    folder, answers = study
    with serving(reply_with(answers)) as (url, bodies):
        asked(folder, url)
        asked(folder, url)  # everything is recorded
    assert len(bodies) == SYSTEMS * SEGMENTS and {body["path"] for body in bodies} == {"/v1/chat/completions"}
    assert "0 could not be parsed" in capsys.readouterr().out
    result, page = folder / "meta.json", folder / "meta.html"
    run("meta", folder / "gold.jsonl", folder / "judged", "--json", result, "--html", page, *FEW)
    out = capsys.readouterr().out
    assert "judged: 0 of 400 answers not parsed" in out and "soft pairwise accuracy" in out
    judge = json.loads(result.read_text())["judges"][0]
    correlation = 1 / math.sqrt(1 + NOISE**2)
    expected = {
        "pearson": correlation,
        "spearman": 6 / math.pi * math.asin(correlation / 2),
        "tau_b": 2 / math.pi * math.asin(correlation),
    }
    for name, truth in expected.items():
        low, high = judge["policies"]["drop"][name]["interval"]
        assert low <= truth <= high, name
    assert judge["tokens_per_answer"] == 7
    assert "<html" in page.read_text()


def test_recorded_answers_are_replayed_without_an_endpoint(study, tmp_path, capsys):
    folder, answers = study
    with serving(reply_with(answers)) as (url, _):
        asked(folder, url)
    (tmp_path / "answers.jsonl").write_bytes((folder / "judged" / "answers.jsonl").read_bytes())
    run("score", folder / "rows.jsonl", "--out", tmp_path)
    assert (tmp_path / "scores.jsonl").read_bytes() == (folder / "judged" / "scores.jsonl").read_bytes()


def test_key_comes_from_the_named_variable_alone(study, tmp_path, monkeypatch, capsys):
    folder, answers = study
    monkeypatch.setenv("MADE_KEY", "sk-made")
    keys = set()

    def reply(body, headers):
        keys.add(headers["Authorization"])
        return reply_with(answers)(body, headers)

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join((folder / "rows.jsonl").read_text().splitlines(True)[:3]))
    with serving(reply) as (url, _):
        run(rows, "--endpoint", url, "--model-name", "made", "--out", tmp_path / "a")
        run(rows, "--endpoint", url, "--model-name", "made", "--out", tmp_path / "b", "--key-variable", "MADE_KEY")
        with pytest.raises(ConfigError, match="no such variable"):
            run(rows, "--endpoint", url, "--model-name", "made", "--out", tmp_path / "c", "--key-variable", "NONE_SUCH")
    assert keys == {None, "Bearer sk-made"}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-made" not in written and "sk-made" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--endpoint", "http://localhost:1/v1"], "needs --model-name"),
        (["--endpoint", "http://localhost:1/v1", "--model-name", "m", "--model", "x"], "together"),
        (["--key-variable", "KEY"], "only an endpoint takes a key"),
        (["--prompt", "likelihood"], "needs --model"),
        (["--prompt", "relevence"], "did you mean 'relevance'"),
        ([], "contains no answers; give --model-name"),
        (["--out", __file__], "is a file; name a folder"),
    ],
)
def test_options_that_contradict_are_refused(study, tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        run(study[0] / "rows.jsonl", "--out", tmp_path, *words)


def test_scores_of_another_judge_are_not_replaced(study, tmp_path):
    folder, answers = study
    with serving(reply_with(answers)) as (url, _):
        asked(folder, url)
        with pytest.raises(ConfigError, match="has the scores of made with prompt da"):
            asked(folder, url, "--prompt", "mqm")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    root = tmp_path_factory.mktemp("model")
    return root, write_checkpoint(root, plan_of(sequence=1024))


def test_likelihood_judge_gives_the_log_probability_of_each_token(checkpoint, study, tmp_path, capsys):
    root, place = checkpoint
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join((study[0] / "rows.jsonl").read_text().splitlines(True)[:3]))
    run(rows, "--model", place, "--prompt", "likelihood", "--out", tmp_path / "likely")
    scores = [json.loads(line)["score"] for line in (tmp_path / "likely" / "scores.jsonl").read_text().splitlines()]
    requests = [Request(f"Source: Source {n}.\nOutput:", f" Text 0-{n}.") for n in range(3)]
    answers = NativeScorer.open(place, root / "tokenizer.json").loglikelihood(requests)
    assert scores == pytest.approx([answer.loglikelihood / answer.tokens for answer in answers])


def test_a_model_of_ours_answers_and_its_answers_are_recorded(checkpoint, study, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join((study[0] / "rows.jsonl").read_text().splitlines(True)[:2]))
    words = (rows, "--model", checkpoint[1], "--out", tmp_path / "ours", "--max-tokens", 4, "--attempts", 2)
    run(*words)
    answers = (tmp_path / "ours" / "answers.jsonl").read_text()
    assert 2 <= len(answers.splitlines()) <= 4
    assert all(json.loads(line)["answer"]["answer_tokens"] <= 4 for line in answers.splitlines())
    run(*words)
    assert (tmp_path / "ours" / "answers.jsonl").read_text() == answers
    assert "2 answers of" in capsys.readouterr().out  # random weights, so that the answers mean nothing
