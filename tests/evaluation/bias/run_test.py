import json
from types import SimpleNamespace

import pytest

from evaluation.bias.coreference_test import write_winobias, write_winogender
from evaluation.bias.writers import Telling, find
from evaluation.models import plan_of, write_checkpoint
from trivium.cli import bias as verb
from trivium.cli.bias import series_lines
from trivium.errors import DataError
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.run import Moment, effects, measure, series
from trivium.report.answers import bias_tables
from trivium.report.words import effect_text

SMALL = {"cooccurrence": {"samples": 20}, "occupations": 20, "permutations": 50, "resamples": 50, "shots": [0, 1]}


def lexicon(tmp_path):
    path = tmp_path / "swn.txt"
    path.write_text("a\t1\t0.75\t0\tkind#1 happy#1\t\na\t2\t0\t0.5\tcruel#1 nasty#1\t\n")
    return str(path)


def everything(tmp_path):
    tree = {**SMALL, "data": str(write_winogender(write_winobias(tmp_path)))}
    tree["cooccurrence"] = {"samples": 20, "lexicon": lexicon(tmp_path)}
    return BiasConfig(analyses=["association", "adjectives", "sentiment", "winogender", "winobias"], **tree)


def test_every_effect_is_listed_once_and_corrected_for_all_others(tmp_path):
    measured = measure(everything(tmp_path), Telling(lambda _: 0.3), seed=1, tagger=find)
    rows = measured.results["effects"]
    assert {r["of"].split(", ")[1] for r in rows if r["measure"].startswith("wino")} == {"0 shots", "1 shot"}
    assert len({(r["measure"], r["of"]) for r in rows}) == len(rows) == 3 + 3 + 13 + 13 + 3 * 2
    assert all(r["p"] <= r["p_holm"] <= 1 for r in rows)
    assert len(measured.texts) == 28 * 20 == sum(20 for _ in measured.results["prompts"])
    assert json.loads(json.dumps(measured.results, allow_nan=False)) == measured.results


def test_series_follows_bias_growing_over_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("trivium.evaluation.bias.run.open_tagger", lambda _: find)
    config = BiasConfig(
        analyses=["sentiment"],
        **{**SMALL, "cooccurrence": {"samples": 100, "axes": ["gender"], "lexicon": lexicon(tmp_path)}},
    )
    scorers = [Telling(lambda p, d=d: 0.2 + d * p.startswith("She")) for d in (0.0, 0.3, 0.6)]
    trees = list(series(config, [Moment({"step": k, "tokens": 1000 * k}, s) for k, s in enumerate(scorers)], seed=1))
    assert [len(tree["checkpoints"]) for tree in trees] == [1, 2, 3]  # each tree contains the results so far
    found = trees[-1]
    assert [m["tokens"] for m in found["checkpoints"]] == [0, 1000, 2000]
    sizes = [m["effects"][0]["estimate"] for m in found["checkpoints"]]
    assert sizes[0] < sizes[1] < sizes[2]  # of men compared with women


def test_series_is_labelled_by_steps(tmp_path, monkeypatch):
    """An fp16 step that overflows performs no update; tasks, checkpoints and the page count steps."""
    write_checkpoint(tmp_path, plan_of(), step=4, updates=3)

    def told(config, moments, **_):
        yield {"checkpoints": [{**m.model, "effects": []} for m in moments]}

    monkeypatch.setattr(verb, "BIAS", SimpleNamespace(inputs=lambda run: {}))
    monkeypatch.setattr(verb, "open_writer", lambda run, place: None)
    monkeypatch.setattr("trivium.evaluation.bias.run.series", told)
    at = SimpleNamespace(checkpoints=tmp_path / "checkpoints", root=tmp_path)
    verb._series(SimpleNamespace(at=at, config=SimpleNamespace(bias=None, seed=1)))
    (found,) = json.loads((tmp_path / verb.SERIES).read_text())["checkpoints"]
    assert (found["step"], found["tokens"]) == (4, 4000)


def test_unmeasured_effects_are_excluded_from_correction():
    """A group without adjectives has no measured difference, rather than a difference of 0."""

    class Mute(Telling):
        def _text(self, prompt, number, seed):
            return "" if prompt.startswith("She") else super()._text(prompt, number, seed)

    config = BiasConfig(analyses=["adjectives"], **{**SMALL, "cooccurrence": {"samples": 60, "axes": ["gender"]}})
    mute, talking = (measure(config, one(lambda p: 0.3), seed=1, tagger=find).results for one in (Mute, Telling))
    assert mute["effects"] == [] and len(talking["effects"]) == 1
    assert mute["not_measured"] == [{"measure": "adjectives", "of": "gender: male", "n": 120}]
    assert talking["not_measured"] == []
    assert talking["effects"][0]["p"] == talking["effects"][0]["p_holm"]
    moments = [{"step": n, "tokens": 1000 * n, **found} for n, found in enumerate((mute, talking), 1)]
    header, row = series_lines({"checkpoints": moments})
    assert row.split()[-2] == "-" and row.split()[-1] == effect_text(talking["effects"][0]["estimate"])


def test_terminal_and_page_show_the_same_figures():
    effect = {"measure": "winobias", "of": "pro less anti, 1 shot", "estimate": 0.0020071, "unit": "nats per token",
              "interval": [0.00051, 0.0034512], "effect_size": 0.1234, "p_holm": 0.012, "n": 396}  # fmt: skip
    _, row = verb._lines({"effects": [effect]})
    (table,) = bias_tables({"effects": [effect], "not_measured": [], "adjectives": {}})
    assert table.rows == [
        ("winobias", effect["of"], "+0.00201", "nats per token", "+0.000510 to +0.00345", "+0.123", "0.0120", "396")
    ]
    assert all(cell in row for cell in table.rows[0])


def test_truncated_sentences_are_reported():
    by_shots = {"0": {"truncated_fraction": 0.0}, "16": {"truncated_fraction": 0.25}}
    found = {"effects": [], "coreference": {"winogender": by_shots}, "model": {"sequence": 64}}
    (line,) = [line for line in verb._lines(found) if "cut" in line]
    assert "25.0 % of the prompts of winogender, 16 shots" in line and "the model's 64 tokens" in line


def test_missing_data_is_found_before_generation():
    class Silent(Telling):
        def generate(self, prompts, *, settings):
            raise AssertionError("asked too early")

    with pytest.raises(DataError, match=r"bias\.data"):
        measure(BiasConfig(analyses=["adjectives", "winobias"]), Silent(None), seed=1, tagger=find)


def test_table_row_states_measure_and_result():
    found = {
        "variants": {"neutral": {"mean_log_ratio": -0.5, "interval": [-0.7, -0.2], "n": 40}},
        "differences": [{"variants": ["competent", "neutral"], "mean": 0.1, "interval": [0.0, 0.2], "n": 40}],
        "coreference": {
            "winobias_type1": {
                "16": {
                    "compared": ["pro", "anti"],
                    "margin": 0.3,
                    "margin_interval": [0.1, 0.6],
                    "sides": {"pro": {"n": 30}, "anti": {"n": 29}},
                }
            }
        },
    }
    for row in (found["variants"]["neutral"], *found["differences"], found["coreference"]["winobias_type1"]["16"]):
        row |= {"permutation_p": 0.01, "effect_size": 0.4}
    rows = effects(found)["effects"]
    assert [(r["measure"], r["of"], r["estimate"], r["interval"], r["n"]) for r in rows] == [
        ("association", "neutral", -0.5, [-0.7, -0.2], 40),
        ("association", "competent less neutral", 0.1, [0.0, 0.2], 40),
        ("winobias_type1", "pro less anti, 16 shots", 0.3, [0.1, 0.6], 59),
    ]
    assert all((r["effect_size"], r["p"], r["p_holm"]) == (0.4, 0.01, 0.03) for r in rows)


def test_effect_of_adjectives_is_excess_over_chance():
    found = {"divergence": 0.83, "expected": 0.79, "permutation_p": 0.4, "texts": 60}
    rows = effects({"adjectives": {"religion": dict.fromkeys(("Atheism", "Islam", "Judaism"), found)}})["effects"]
    assert [row["of"] for row in rows] == ["religion: Atheism", "religion: Islam", "religion: Judaism"]
    assert all(row["estimate"] == pytest.approx(0.04) and row["unit"] == "bits above chance" for row in rows)


def test_unanswerable_question_does_not_weaken_correction():
    heard = {"divergence": 0.9, "expected": 0.5, "permutation_p": 0.02, "texts": 60}
    mute = dict.fromkeys(("divergence", "expected", "permutation_p")) | {"texts": 60}
    results = {"adjectives": {"religion": {"Atheism": heard, "Islam": mute, "Judaism": heard}}}
    found = effects(results)
    assert [row["p_holm"] for row in found["effects"]] == [0.04, 0.04]
    assert found["not_measured"] == [{"measure": "adjectives", "of": "religion: Islam", "n": 60}]


def test_only_configured_analyses_run():
    class Silent(Telling):
        def generate(self, prompts, *, settings):
            raise AssertionError("nothing was to be written")

    found = measure(BiasConfig(analyses=["association"], **SMALL), Silent(None), seed=1).results
    assert "adjectives" not in found and "coreference" not in found and len(found["effects"]) == 6
