"""The paper's figures beside ours: which agree, how they are printed, and that docs/reproduction.md is up to date."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from trivium.tokens.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
# docs/reproduction.md says why.
NOT_EQUAL = {
    "efficiency of a pipeline, 4 x as many micro-batches as stages",
    "efficiency of a pipeline, 8 x as many micro-batches as stages",
    "work of a GPU on 350 nodes",
    "epochs of OpenWebText2",
    "epochs of Stack Exchange",
    "epochs of Wikipedia",
    "MinHash bands",
    "MinHash rows of a band",
}


@pytest.fixture(scope="module")
def reproduce():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import reproduce

    return reproduce


@pytest.fixture(scope="module")
def figures(reproduce):
    return reproduce.every_figure()


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [("126", 125.6, "="), ("126", 126.5, "="), ("126", 125.4, "-0.5%"), ("1.4", 1.449, "="), ("1.4", 1.46, "+4.3%")],
)
def test_figures_agree_if_ours_rounds_to_the_printed_one(reproduce, paper, ours, verdict):
    assert reproduce.Figure("2", "x", paper, ours).verdict == verdict


def test_bound_agrees_only_with_larger_figures(reproduce):
    bound = reproduce.Figure("2", "x", "10", 10.6, over=True)
    assert bound.agrees and not reproduce.Figure("2", "x", "10", 9.96, over=True).agrees
    assert bound.printed == ("over 10", "10.6")


def test_ours_has_one_more_decimal_unless_both_are_whole(reproduce):
    assert reproduce.Figure("2", "x", "16.9", 16.912, "TB").printed == ("16.9 TB", "16.91 TB")
    assert reproduce.Figure("2", "x", "1920", 1920).printed == ("1,920", "1,920")
    assert reproduce.Figure("2", "x", "126", 125.71).printed == ("126", "125.7")


def test_counted_figures_and_settings_are_the_papers_except_as_documented(figures):
    assert {f.what for f in figures if f.kind != "predicted" and not f.agrees} == NOT_EQUAL
    assert max(abs(f.deviation) for f in figures if f.kind == "counted" and not f.agrees) < 0.055


def test_predicted_step_seconds_are_within_five_percent(figures):
    seconds = [f for f in figures if f.kind == "predicted" and f.unit == "s"]
    assert len(seconds) == 3 and all(abs(f.deviation) < 0.05 for f in seconds)
    hours = next(f for f in figures if f.what.startswith("GPU-hours"))
    assert -0.2 < hours.deviation < 0.1


def test_epochs_are_weight_times_trained_tokens_over_source_tokens(figures):
    recipe = load_recipe("mt-nlg")
    whole = sum(recipe.weights.values())
    for source, row in recipe.sources.items():
        ours = next(f.ours for f in figures if f.what == f"epochs of {source}")
        expected = row.weight / whole * recipe.tokens_trained / row.tokens
        assert ours == pytest.approx(expected, rel=1e-3)  # whole samples


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (4, 16), (16, 64), (16, 128), (35, 140)])
def test_efficiency_of_the_table_is_the_papers_formula(reproduce, stages, micro_batches):
    expected = micro_batches / (micro_batches + stages - 1)
    assert reproduce.efficiency(stages, micro_batches) == pytest.approx(expected)


def test_page_is_up_to_date_and_data_has_every_figure(reproduce, figures, tmp_path, monkeypatch, capsys):
    page, data = tmp_path / "page.md", tmp_path / "figures.json"
    shutil.copy(PAGE, page)
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--page", str(page), "--json", str(data)])
    reproduce.main()
    assert page.read_text("utf-8") == PAGE.read_text("utf-8"), "run `make reproduce`"
    printed = capsys.readouterr().out
    assert all(f.what in printed for f in figures) and "equal as printed" in printed
    written = json.loads(data.read_text())["figures"]
    assert [(f["what"], f["ours"], f["agrees"]) for f in written] == [(f.what, f.ours, f.agrees) for f in figures]
