"""A figure of the paper beside ours: when both are the same, and how they are printed."""

import pytest

from trivium.reproduction.figure import Figure


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        ("126", 125.6, "="),
        ("126", 126.5, "="),
        ("126", 125.4, "-0.5%"),
        ("1.4", 1.449, "="),
        ("1.4", 1.46, "+4.3%"),
    ],
)
def test_ours_agrees_where_it_rounds_to_what_is_printed(paper, ours, verdict):
    assert Figure("2", "x", paper, ours).verdict == verdict


def test_a_bound_is_kept_by_what_lies_beyond_it_only():
    bound = Figure("2", "x", "10", 10.6, over=True)
    assert bound.agrees and not Figure("2", "x", "10", 9.96, over=True).agrees
    assert bound.printed == ("over 10", "10.6")


def test_ours_is_printed_with_one_digit_more_unless_both_are_whole():
    assert Figure("2", "x", "16.9", 16.912, "TB").printed == ("16.9 TB", "16.91 TB")
    assert Figure("2", "x", "1920", 1920).printed == ("1,920", "1,920")
    assert Figure("2", "x", "126", 125.71).printed == ("126", "125.7")
