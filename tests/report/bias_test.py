import pytest

from report.fake_run import stations, write_run
from trivium.errors import DataError
from trivium.report.bias import bias_tables
from trivium.report.collect import collect


def test_every_effect_and_group_has_a_row(tmp_path):
    effects, words = bias_tables(collect(write_run(tmp_path))["bias"])
    assert [row[:2] for row in effects.rows] == [("association", "neutral"), ("adjectives", "gender: male")]
    assert effects.rows[0][4] == "-0.50 to -0.30" and effects.rows[1][4:6] == ("–", "–")
    assert words.rows == [("male", "tall (3)", "old (+0.70*)")]


def test_unmeasured_effect_has_a_row(tmp_path):
    mute = {"effects": [], "not_measured": [{"measure": "adjectives", "of": "gender: male", "n": 60}], "adjectives": {}}
    (table,) = bias_tables(
        collect(write_run(tmp_path, **{"bias/results.json": stations()["bias/results.json"] | mute}))["bias"]
    )
    assert table.rows == [("adjectives", "gender: male", "not measured", "–", "–", "–", "–", "60")]


def test_results_without_effects_have_no_table(tmp_path):
    old = {k: v for k, v in stations()["bias/results.json"].items() if k not in ("effects", "adjectives")}
    assert bias_tables(collect(write_run(tmp_path, **{"bias/results.json": old}))["bias"]) == []


def test_damaged_effects_are_named(tmp_path):
    bad = stations()["bias/results.json"] | {"effects": [{"measure": "x"}]}
    with pytest.raises(DataError, match=r"bias/results.json.*effects"):
        collect(write_run(tmp_path, **{"bias/results.json": bad}))
