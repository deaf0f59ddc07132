import pytest

from trivium.report.parts import Table
from trivium.report.words import (
    bytes_text,
    chance_text,
    killed_text,
    layout_text,
    level_text,
    moment_text,
    nats_text,
    number_text,
    reasons_text,
    shots_text,
    small_text,
)


def test_times_are_shown_to_the_minute():
    assert moment_text("2026-01-31T12:00:59+00:00") == "2026-01-31 12:00 UTC"
    assert moment_text("2026-01-31T13:00:00+01:00") == "2026-01-31 12:00 UTC"
    assert (moment_text("soon"), moment_text(None)) == ("soon", "unknown")


@pytest.mark.parametrize(
    ("p", "text"), [(1e-97, "< 0.001"), (0.001, "0.001"), (0.0125, "0.013"), (1, "1.000"), (None, "unknown")]
)
def test_p_values_are_shown_with_meaningful_digits(p, text):
    assert chance_text(p) == text


def test_figures_have_two_decimals_and_counts_none():
    assert (number_text(-8.5766), number_text(1234), number_text(None)) == ("-8.58", "1,234", "unknown")


def test_documents_added_by_cutting_are_shown_separately():
    step = {"documents": 107}
    assert reasons_text({"leak": 3}, step, 100) == (
        "leak 3, 10 more: a document is cut in two where a passage is taken out"
    )
    assert reasons_text({}, {"documents": 100}, 100) == "none"


def test_level_is_shown_if_all_scores_share_it():
    assert level_text([{"confidence": 0.95}, {"confidence": 0.95}]) == "95% interval"
    assert level_text([{"confidence": 0.95}, {"confidence": 0.9}]) == level_text([]) == "interval"


@pytest.mark.parametrize(("level", "text"), [(0.9, "90%"), (0.975, "97.5%"), (0.999, "99.9%"), (0.57, "57%")])
def test_level_is_not_rounded_to_100_percent(level, text):
    assert level_text([{"confidence": level}]) == f"{text} interval"


def test_kill_is_shown_without_process_id():
    killed = {"pid": 20899, "rank": 7, "signal": "SIGKILL", "step": 166}
    assert killed_text(killed) == "rank 7, by SIGKILL, at step 166"


def test_layout_shows_known_axes():
    layout = {"tensor": 2, "pipeline": 4, "data": 1, "context": 1, "chunks": 2}
    assert layout_text(layout) == "tensor 2 x pipeline 4 (2 chunks) x data 1"
    assert layout_text({"tensor": 2, "pipeline": 4, "context": 2}) == "tensor 2 x pipeline 4 x context 2"
    assert layout_text({}) == "an unknown layout"
    assert killed_text({"rank": 7}) == "rank 7" and killed_text({}) == "unknown"


def test_missing_figure_is_unknown():
    assert (nats_text(4.8036), nats_text(None)) == ("4.804 nats per token", "unknown")
    assert (small_text(2.384e-07), small_text(None)) == ("2.4e-07", "not finite")
    assert (bytes_text(1320.0), bytes_text(None)) == ("1,320", "unknown")
    assert (shots_text("1"), shots_text("0"), shots_text("4")) == ("1 shot", "0 shots", "4 shots")
    assert reasons_text({"short": 2, "leak": 3}, {"documents": 100}, None) == "leak 3, short 2"
    assert reasons_text({"leak": 3}, {"documents": 98}, 100).startswith("leak 3, 1 more")


def test_only_numeric_columns_are_right_aligned():
    rows = [("a", "1,024", "20.0%", "13.3% to 28.9%", "1.2e-07"), ("b", "none", "unknown", "unknown", "3")]
    assert Table(("x",) * 5, rows).numeric == (False, True, True, True, True)
