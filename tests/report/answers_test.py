"""Sections about answers show the results of the files in their order, and name what was not measured."""

import pytest

from report.fake_run import incontext_study, stations, write_run
from trivium.errors import DataError
from trivium.report.answers import bias_section, bias_tables, evaluation_section, incontext_section, tasks_section
from trivium.report.collect import collect
from trivium.report.figures import (
    MAX_OCCUPATIONS,
    accuracy_against_tokens,
    against_shots,
    calibration,
    margins,
    occupations,
    varied,
)


def test_every_effect_and_group_has_a_row(tmp_path):
    effects, words = bias_tables(collect(write_run(tmp_path))["bias"])
    (strong,), (weak,) = effects.rows, effects.not_significant
    assert strong[:2] == ("association", "neutral") and strong[4] == "-0.500 to -0.300"
    assert weak[:2] == ("adjectives", "gender: male") and weak[4:6] == ("–", "–")
    assert words.rows == [("male", "tall (3)", "old (+0.700)")]


def test_words_without_significance_are_folded_away(tmp_path):
    bias = stations()["bias/results.json"]
    weak = {"word": "new", "count": 2, "log_odds": 0.1, "interval": None, "p_holm": 0.9}
    bias["adjectives"]["gender"]["male"]["one_sided"].append(weak)
    section = bias_section(collect(write_run(tmp_path, **{"bias/results.json": bias})))
    words = {d.tier: list(d.figure.data[0].y) for d in section.figures if d.caption.startswith("One-sided")}
    assert words == {"detail": ["male: old"], "not significant": ["male: new"]}
    assert not any("new" in cell for table in section.tables for row in table.rows for cell in row)


def test_scores_without_significance_are_folded_away(tmp_path):
    """0 shots is 31 % of 500 against 26 %; 4 shots is chance."""
    evaluation = stations()["evaluation/results.json"]
    scores = evaluation["tasks"]["last_word"]
    scores["4"] = scores["4"] | {"accuracy": 0.26, "interval": [0.22, 0.3]}
    section = evaluation_section(collect(write_run(tmp_path, **{"evaluation/results.json": evaluation})))
    table = section.tables[0]
    assert [row[1] for row in table.rows] == ["0"] and [row[1] for row in table.not_significant] == ["4"]
    bars = {d.tier: list(d.figure.data[0].y) for d in section.figures}
    assert bars == {"picture": ["last_word, 0 shots"], "not significant": ["last_word, 4 shots"]}
    assert section.gist == "1 of 2 scores significantly above chance"


def test_unmeasured_effect_has_a_row(tmp_path):
    mute = {"effects": [], "not_measured": [{"measure": "adjectives", "of": "gender: male", "n": 60}], "adjectives": {}}
    (table,) = bias_tables(
        collect(write_run(tmp_path, **{"bias/results.json": stations()["bias/results.json"] | mute}))["bias"]
    )
    assert table.not_significant == [("adjectives", "gender: male", "not measured", "–", "–", "–", "–", "60")]


def test_results_without_effects_have_no_table(tmp_path):
    old = {k: v for k, v in stations()["bias/results.json"].items() if k not in ("effects", "adjectives")}
    assert bias_tables(collect(write_run(tmp_path, **{"bias/results.json": old}))["bias"]) == []


def test_damaged_effects_are_named(tmp_path):
    bad = stations()["bias/results.json"] | {"effects": [{"measure": "x"}]}
    with pytest.raises(DataError, match=r"bias/results.json.*effects"):
        collect(write_run(tmp_path, **{"bias/results.json": bad}))


def test_task_added_later_is_drawn_from_then():
    moments = [
        {"tokens": 1000, "tasks": {"hans": {"0": {"accuracy": 0.5}}}},
        {"tokens": 2000, "tasks": {"hans": {"0": {"accuracy": 0.6}}, "piqa": {"1": {"accuracy": 0.7}}}},
        {"tokens": 3000, "tasks": {"piqa": {"1": {"accuracy": 0.8}}}},
    ]
    hans, piqa = accuracy_against_tokens(moments).data
    assert (hans.name, list(hans.x), list(hans.y)) == ("hans, 0 shots", [1000, 2000], [0.5, 0.6])
    assert (piqa.name, list(piqa.x), list(piqa.y)) == ("piqa, 1 shot", [2000, 3000], [0.7, 0.8])


def test_accuracies_on_different_questions_are_not_connected():
    points = ((1000, 0.5, "few"), (2000, 0.7, "many"), (3000, 0.6, "many"))
    series = [{"tokens": n, "tasks": {"hans": {"0": {"accuracy": a, "prompt_hash": h}}}} for n, a, h in points]
    assert [list(line.x) for line in accuracy_against_tokens(series).data] == [[1000], [2000, 3000]]


def test_section_names_the_checkpoint():
    score = {"n": 5, "accuracy": 0.4, "interval": [0.1, 0.8], "chance": 0.5, "unigram": None}
    found = {"tasks": {"wic": {"0": score}}, "series": [], "skipped": {}}
    told = tasks_section({"tasks": found | {"model": {"step": 1200, "tokens": 614400}}}).shows
    assert told.endswith("Checkpoint: step 1,200, after 614,400 tokens.")
    assert "Checkpoint" not in tasks_section({"tasks": found}).shows


def model():
    found = incontext_study()["models"][0]
    measured = found["shots"]["2"]
    # Keys in files are sorted as strings: 16 before 2, False before True.
    found["shots"] = {k: {**measured, "accuracy": float(k) / 100} for k in ("0", "16", "2")}
    return found


def test_shots_are_sorted_numerically():
    (accuracy, threshold) = against_shots([model()], ["a"]).data
    assert list(accuracy.x) == ["0", "2", "16"] and list(accuracy.y) == [0.0, 0.02, 0.16]
    assert "threshold" in threshold.name


def test_truncated_prompts_are_shown():
    study = incontext_study()
    study["models"][0]["order"]["2"] = study["models"][0]["order"]["2"] | {"truncated_fraction": 0.25}
    (table,) = incontext_section({"incontext": study}).tables
    cut = {row[1]: row[-1] for row in table.rows}
    assert table.headings[-1] == "prompts cut" and cut["order of the same shots"] == "25.0%"
    assert cut["number of shots"] == "unknown"  # as in an older version


def test_only_last_model_has_corrections():
    assert len(against_shots([model()] * 3, ["a", "b", "c"]).data) == 3 + 1


def test_similar_models_are_distinguished_by_target():
    named = [{"target": f"models/{name}", **model()} for name in ("base", "tuned")]
    drawn = incontext_section({"incontext": {"task": "hans", "models": named}}).figures[0].figure
    first, second = (line.name for line in drawn.data[:2])
    assert first.startswith("base: step ") and second.startswith("tuned: step ")


def test_every_row_and_figure_names_its_model():
    """Also where the last parts of two targets are equal."""
    named = [{"target": target, **model()} for target in ("a/run", "b/run", "b/run", "c/other")]
    section = incontext_section({"incontext": {"task": "hans", "models": named}})
    (table,) = section.tables
    assert table.headings[0] == "model"
    rows = [row[0].split(": step ")[0] for row in table.rows]
    assert [name for n, name in enumerate(rows) if rows[n - 1 : n] != [name]] == ["a/run", "b/run", "other"]
    assert all("(other: step " in drawn.caption for drawn in section.figures[1:]) and len(section.figures) > 3
    alone = incontext_section({"incontext": {"task": "hans", "models": named[:1]}})
    assert not any("run" in drawn.caption for drawn in alone.figures)


def test_margins_are_of_first_label_over_second():
    histogram = {"edges": [-1.0, 0.0, 1.0], "counts": {" False": [5, 0], " True": [0, 7]}}
    figure = margins({"a": histogram, "b": histogram}, [" True", " False"])
    assert [t.name for t in figure.data[:2]] == ["gold: True", "gold: False"]
    assert list(figure.data[0].y) == [0, 7] and len(figure.data) == 4
    assert figure.layout.xaxis2.title.text == "log P(True) − log P(False)"
    for labels in (None, [" True", " Neither", " False"]):
        lead = margins({"": {"edges": [0.0, 1.0], "counts": {"right": [3]}}}, labels)
        assert lead.layout.xaxis.title.text.startswith("lead of the right choice")
        assert [list(bars.y) for bars in lead.data] == [[3]]


@pytest.mark.parametrize("low", [0.1, -0.605, -5.0])
def test_most_skewed_occupations_are_farthest_from_zero(low):
    ratios = [(f"occupation {n}", low + n / 100) for n in range(100)]
    drawn = list(occupations(ratios, against="nats").data[0].x)
    assert drawn == sorted(sorted((v for _, v in ratios), key=abs)[-MAX_OCCUPATIONS:])


def test_intervals_and_confidence_are_shown_as_measured():
    study = model()
    (order,) = varied({"order": study["order"]}).data
    assert list(order.x) == [0.5] and [round(e, 9) for e in order.error_x.array] == [0.2]
    diagonal, bins = calibration({"2": study["shots"]["2"]}).data
    assert list(diagonal.x) == [0, 1] and (list(bins.x), list(bins.y)) == ([0.6], [0.5])
