"""An array that is full → a larger one with the same rows.

Row by row: numba takes six seconds to compile the assignment of a slice, which can also say what does not fit.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit


@njit(cache=True, nogil=True)
def with_room(rows: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """The rows in an array of `room` rows, those behind them unset: [rows, columns] → [room, columns]."""
    larger = np.empty((room, rows.shape[1]), np.int64)
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            larger[row, column] = rows[row, column]
    return larger
