import numpy as np
import pytest

from trivium.corpus.kernels.shingles import pairs_in_band
from trivium.corpus.kernels.words import with_room

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_what_grows_keeps_every_row(columns: int) -> None:
    rows = np.arange(7 * columns, dtype=np.int64).reshape(7, columns)
    larger = with_room(rows, 20)
    assert larger.shape == (20, columns) and (larger[:7] == rows).all()


def test_more_pairs_than_there_was_room_for_are_all_there() -> None:
    texts, chain = 3000, 3
    found = pairs_in_band(np.ones(texts, np.uint64), chain=chain)
    expected = [
        (earlier, later) for later in range(texts) for earlier in sorted({*range(min(later, chain)), later - 1} - {-1})
    ]
    assert found.tolist() == [list(pair) for pair in expected]
