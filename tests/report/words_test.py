import pytest

from trivium.report.corpus import _reasons
from trivium.report.parts import Table
from trivium.report.words import (
    chance_text,
    effect_text,
    killed_text,
    layout_text,
    level_text,
    moment_text,
    number_text,
    range_text,
)


def test_times_are_shown_to_the_minute_and_in_utc():
    assert moment_text("2026-01-31T13:00:59+01:00") == "2026-01-31 12:00 UTC"
    assert (moment_text("soon"), moment_text(None)) == ("soon", "unknown")


@pytest.mark.parametrize(
    ("p", "text"), [(1e-97, "< 0.001"), (0.001, "0.00100"), (0.0125, "0.0125"), (0.99961, "1.00"), (None, "unknown")]
)
def test_p_values_are_shown_with_meaningful_digits(p, text):
    assert chance_text(p) == text


def test_figures_have_two_decimals_and_counts_none():
    assert (number_text(-8.5766), number_text(1234), number_text(None)) == ("-8.58", "1,234", "unknown")


def test_small_effects_are_shown_with_sign_and_digits():
    assert [effect_text(v) for v in (0.0020071, -2.1, 146.71, None)] == ["+0.00201", "-2.10", "+147", "unknown"]
    rows = [("+0.00201", "+1.30e-05 to +0.00345"), ("-0.4", "-0.5 to -0.3")]
    assert rows[0][1] == range_text([0.000013, 0.0034512], effect_text)
    assert Table(("estimate", "interval"), rows).numeric == (True, True)


def test_documents_added_by_cutting_are_shown_separately():
    step = {"documents": 107, "dropped": {"leak": 3}}
    assert _reasons(step, 100) == "leak 3, 10 more: removing a passage splits a document"


def test_layouts_and_kills_are_named_as_far_as_they_are_known():
    layout = {"tensor": 2, "pipeline": 2, "chunks": 2, "data": 1, "context": 1}
    assert layout_text(layout) == "tensor 2 x pipeline 2 (2 chunks) x data 1"
    assert layout_text({"data": 2, "context": 2, "expert": 4}) == "data 2 x context 2 (expert 4)"
    assert layout_text({}) == "an unknown layout"
    assert killed_text({"rank": 7, "step": 2}) == "rank 7, at step 2" and killed_text({}) == "unknown"


def test_intervals_are_named_by_their_common_level():
    assert level_text([{"confidence": 0.95}, {"confidence": 0.95}]) == "95% interval"
    assert level_text([{"confidence": 0.95}, {"confidence": 0.9}]) == "interval"


def test_columns_of_numbers_are_recognised():
    rows = [("a", "1,234", "0.10 to 0.20"), ("b", "unknown", "none")]
    assert Table(("name", "n", "interval"), rows).numeric == (False, True, True)
