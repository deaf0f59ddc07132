"""Units: formatted values can be parsed, and parsed values are correct."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import ConfigError
from trivium.units import format_bytes, format_count, format_energy, format_flops, format_seconds, listed, parse_count


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (10.6e12, "9.64 TiB"), (80 << 30, "80 GiB")],
)
def test_bytes_are_formatted_in_powers_of_1024(value: float, text: str):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.9, "1K"), (1000, "1K"), (999_600, "1M"), (529.6e9, "530B"), (339e9, "339B")],
)
def test_counts_are_formatted_in_powers_of_1000(value: float, text: str):
    assert format_count(value) == text


def test_flops_are_formatted_with_unit():
    assert format_flops(3.12e14) == "312 TFLOP"
    assert [format_energy(j) for j in (1800, 5.4e6, 3.6e9)] == ["0.5 Wh", "1.5 kWh", "1 MWh"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "10 us"),
        (0.0123, "12.3 ms"),
        (12.3, "12.3 s"),
        (75, "1 min 15 s"),
        (3660, "1 h 1 min"),
        (345600, "4 days"),
        (0.000_999_6, "1 ms"),
        (0.9996, "1 s"),
        (999.6 * 86400, "1,000 days"),
        (2007 * 86400, "2,007 days"),
    ],
)
def test_seconds_are_formatted_in_suitable_unit(value: float, text: str):
    assert format_seconds(value) == text


@given(st.floats(min_value=59, max_value=61) | st.floats(min_value=119, max_value=7300))
def test_times_never_have_sixty_seconds_or_minutes(value: float):
    assert "60 s" not in format_seconds(value) and "60 min" not in format_seconds(value)


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_times_have_no_exponent(value: float):
    assert "e+" not in format_seconds(value)


@given(st.integers(min_value=0, max_value=10**15))
def test_formatted_count_parses_to_three_digits(value: int):
    assert parse_count(format_count(value)) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("text", "value"), [("12B", 12 * 10**9), ("4KiB", 4096), ("1_000", 1000), ("1.5M", 1_500_000), ("2e9", 2 * 10**9)]
)
def test_quantities_are_parsed_with_factor(text: str, value: int):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "B", "12 apples", "-3", "1..2K", "1e400", "1e300Q", "1e300", "9.3e18"])
def test_invalid_quantity_is_rejected_with_its_text(text: str):
    with pytest.raises(ConfigError, match=f"'{text}' is not a quantity"):
        parse_count(text)


def test_long_list_is_shortened_with_count() -> None:
    assert listed([]) == "" and listed([3, 5]) == "3, 5" and listed(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert listed(range(2240)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2,232 more"
