"""The figures about in-context learning show the study's results in its order."""

from report.fake_run import incontext_study
from trivium.report.incontext import against_shots, calibration, incontext_section, margins, varied


def model():
    found = incontext_study()["models"][0]
    measured = found["shots"]["2"]
    # Keys in files are sorted as strings: 16 before 2, False before True.
    found["shots"] = {k: {**measured, "accuracy": float(k) / 100} for k in ("0", "16", "2")}
    return found


def test_shots_are_sorted_numerically():
    (accuracy, threshold) = against_shots([model()]).data
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
    assert len(against_shots([model(), model(), model()]).data) == 3 + 1


def test_similar_models_are_distinguished_by_target():
    named = [{"target": f"models/{name}", **model()} for name in ("base", "tuned")]
    first, second = (line.name for line in against_shots(named).data[:2])
    assert first.startswith("base: step ") and second.startswith("tuned: step ")


def test_margins_are_of_first_label_over_second():
    histogram = {"edges": [-1.0, 0.0, 1.0], "counts": {" False": [5, 0], " True": [0, 7]}}
    figure = margins({"a": histogram, "b": histogram}, [" True", " False"])
    assert [t.name for t in figure.data[:2]] == ["gold: True", "gold: False"]
    assert list(figure.data[0].y) == [0, 7] and len(figure.data) == 4
    assert figure.layout.xaxis2.title.text == "log P(True) − log P(False)"
    lead = margins({"": {"edges": [0.0, 1.0], "counts": {"right": [3]}}}, None)
    assert lead.layout.xaxis.title.text.startswith("lead of the right choice")


def test_intervals_and_confidence_are_shown_as_measured():
    study = model()
    (order,) = varied({"order": study["order"]}).data
    assert list(order.x) == [0.5] and [round(e, 9) for e in order.error_x.array] == [0.2]
    diagonal, bins = calibration({"2": study["shots"]["2"]}).data
    assert list(diagonal.x) == [0, 1] and (list(bins.x), list(bins.y)) == ([0.6], [0.5])
