"""Which document each token came from: one Parquet table beside every shard, a row per document, in shard order.

documents-<split>-<source>.parquet   columns document (id in the corpus), tokens (with its end mark)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.tokens.shards import TokenShard


class Span(NamedTuple):
    """`length` tokens of one document, starting at `offset` in a sample."""

    document: str
    offset: int
    length: int


def write_lineage(path: Path, documents: Sequence[str], lengths: NDArray[np.int64]) -> None:
    """Write the document id and length of each document of a shard."""
    table = {"document": pa.array(documents, pa.string()), "tokens": pa.array(lengths, pa.int64())}
    pq.write_table(pa.table(table), path, compression="zstd")


def read_lineage(path: Path, shard: TokenShard) -> list[str]:
    """The document ids of a shard; DataError when the table is missing, damaged, or of another shard."""
    try:
        table = pq.read_table(path, columns=["document", "tokens"])
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run `trivium tokenize` again") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not readable Parquet ({error}); run `trivium tokenize` again") from None
    if not np.array_equal(table["tokens"].to_numpy(), np.diff(shard.document_starts)):
        raise DataError(
            f"{path} lists {table.num_rows} documents that are not the {len(shard)} of {shard.prefix}.idx; "
            "run `trivium tokenize` again"
        )
    return [str(d) for d in table["document"].to_pylist()]


def spans(documents: Sequence[str], starts: NDArray[np.int64], window: tuple[int, int]) -> list[Span]:
    """The documents under tokens [window[0], window[1]) of a shard; past its end it begins again."""
    found: list[Span] = []
    at, end = window
    total = int(starts[-1])
    while at < end:
        place = at % total
        # The last document that starts at or before `place`: empty ones before it hold no token.
        index = int(np.searchsorted(starts, place, side="right")) - 1
        length = min(int(starts[index + 1]) - place, end - at)
        found.append(Span(documents[index], at - window[0], length))
        at += length
    return found
