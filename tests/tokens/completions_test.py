"""Completions are found by the weights of targets, and a row is made of whole pairs."""

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.tokens.completions import completions_of


def rows(*texts: str) -> np.ndarray:
    return np.array([[float(c) for c in text] for text in texts], np.float32)


def test_completions_are_numbered_in_their_order_over_rows() -> None:
    found = completions_of(rows("0110022010020", "0000000000000", "1120000000000"), range(3))
    assert found.pairs == 3
    assert found.number.tolist()[0] == [0, 1, 1, 0, 0, 2, 2, 0, 3, 0, 0, 4, 0]
    assert not found.number[1].any() and found.number[2].tolist()[:4] == [5, 5, 6, 0]


def test_a_completion_may_have_tokens_between_that_do_not_count() -> None:
    assert completions_of(rows("0110110020"), [0]).pairs == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("0012", "0100", "0012"), "sample 11 has a chosen completion without its rejected one"),
        (("0012", "0002"), "sample 11 has a rejected completion without its chosen one"),
        (("0120", "1210"), "sample 11 has a chosen completion without its rejected one"),
        (("0001", "2000"), "sample 10 has a chosen completion without its rejected one"),
        (("0132",), "sample 10 has a target of weight 3"),
    ],
)
def test_rows_without_whole_pairs_are_refused(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        completions_of(rows(*texts), range(10, 20))
