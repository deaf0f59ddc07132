"""The similar pairs of one column of texts that fits in memory: bands propose, true similarity decides."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.minhash import MinHash, candidate_pairs
from trivium.corpus.kernels.shingles import Pairs, jaccard_of_pairs, shingle_sets
from trivium.corpus.kernels.texts import texts_of


class Similar(NamedTuple):
    """Pairs (earlier, later) of rows, shape [pairs, 2], and the Jaccard similarity of each, at least the threshold."""

    pairs: Pairs
    similarity: NDArray[np.float64]


def similar_pairs(column: pa.Array | pa.ChunkedArray, config: DedupConfig, *, seed: int) -> Similar:
    """Every verified pair among the texts of an Arrow column."""
    minhash = MinHash(bands=config.bands, rows=config.rows, shingle=config.shingle, seed=seed)
    pairs = candidate_pairs(minhash.band_keys(texts_of(column)))
    rows = np.unique(pairs)
    sets = shingle_sets(texts_of(column.take(pa.array(rows))), size=config.shingle)
    similarity = jaccard_of_pairs(sets, sets, np.searchsorted(rows, pairs))
    similar = similarity >= config.threshold
    return Similar(pairs[similar], similarity[similar])
