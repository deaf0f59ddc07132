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


def test_times_are_told_to_the_minute_and_other_text_is_left():
    assert moment_text("2026-01-31T12:00:59+00:00") == "2026-01-31 12:00 UTC"
    assert moment_text("2026-01-31T13:00:00+01:00") == "2026-01-31 12:00 UTC"
    assert (moment_text("soon"), moment_text(None)) == ("soon", "unknown")


@pytest.mark.parametrize(
    ("p", "text"), [(1e-97, "< 0.001"), (0.001, "0.001"), (0.0125, "0.013"), (1, "1.000"), (None, "unknown")]
)
def test_a_probability_has_no_more_digits_than_it_means(p, text):
    assert chance_text(p) == text


def test_figures_have_two_decimals_and_counts_none():
    assert (number_text(-8.5766), number_text(1234), number_text(None)) == ("-8.58", "1,234", "unknown")


def test_documents_made_by_cutting_are_told_apart_from_dropped_ones():
    step = {"documents": 107}
    assert reasons_text({"leak": 3}, step, 100) == (
        "leak 3, 10 more: a document is cut in two where a passage is taken out"
    )
    assert reasons_text({}, {"documents": 100}, 100) == "none"


def test_a_level_is_named_only_when_all_scores_share_it():
    assert level_text([{"confidence": 0.95}, {"confidence": 0.95}]) == "95% interval"
    assert level_text([{"confidence": 0.95}, {"confidence": 0.9}]) == level_text([]) == "interval"


@pytest.mark.parametrize(("level", "text"), [(0.9, "90%"), (0.975, "97.5%"), (0.999, "99.9%"), (0.57, "57%")])
def test_a_level_is_told_as_it_is_not_rounded_to_certainty(level, text):
    assert level_text([{"confidence": level}]) == f"{text} interval"


def test_the_kill_is_told_without_its_process_number():
    killed = {"pid": 20899, "rank": 7, "signal": "SIGKILL", "step": 166}
    assert killed_text(killed) == "rank 7, by SIGKILL, at step 166"


def test_a_layout_is_told_by_its_axes_and_what_is_not_known_is_left_out():
    layout = {"tensor": 2, "pipeline": 4, "data": 1, "context": 1, "chunks": 2}
    assert layout_text(layout) == "tensor 2 x pipeline 4 (2 chunks) x data 1"
    assert layout_text({"tensor": 2, "pipeline": 4, "context": 2}) == "tensor 2 x pipeline 4 x context 2"
    assert layout_text({}) == "an unknown layout"
    assert killed_text({"rank": 7}) == "rank 7" and killed_text({}) == "unknown"


def test_a_figure_that_is_not_there_is_said_to_be_missing():
    assert (nats_text(4.8036), nats_text(None)) == ("4.804 nats per token", "unknown")
    assert (small_text(2.384e-07), small_text(None)) == ("2.4e-07", "not finite")
    assert (bytes_text(1320.0), bytes_text(None)) == ("1,320", "unknown")
    assert (shots_text("1"), shots_text("0"), shots_text("4")) == ("1 shot", "0 shots", "4 shots")
    assert reasons_text({"short": 2, "leak": 3}, {"documents": 100}, None) == "leak 3, short 2"
    assert reasons_text({"leak": 3}, {"documents": 98}, 100).startswith("leak 3, 1 more")


def test_only_columns_of_numbers_stand_to_the_right():
    rows = [("a", "1,024", "20.0%", "13.3% to 28.9%", "1.2e-07"), ("b", "none", "unknown", "unknown", "3")]
    assert Table(("x",) * 5, rows).numeric == (False, True, True, True, True)
