"""Ids of the documents of parts, which lie in a folder each: what they are as read, and what they become.

Files number their rows alike, so what a document is called depends on all others, and is settled when all are known.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.job import mapped, write_array
from trivium.corpus.read.own_ids import OwnIds, keys_of
from trivium.corpus.store import PASSING_PACKING

IDS, KEYS = "ids.parquet", "keys.npy"


def write_ids(into: Path, ids: Sequence[str]) -> None:
    """Lay down the ids of a part's documents, as they are read, in its folder."""
    write_array(into / KEYS, keys_of(ids))
    pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), into / IDS, **PASSING_PACKING)


def names_in(folders: Sequence[Path]) -> list[dict[int, str]]:
    """For each part, in their order, the rows that need another id than their own, and that id."""
    # copied, as each file that is mapped is one that is open, and a process may have a thousand
    keys = [mapped(folder / KEYS).copy() for folder in folders]
    ids = OwnIds(np.concatenate(keys))
    found: list[dict[int, str]] = []
    for folder, mine in zip(folders, keys, strict=True):
        rows = np.flatnonzero(ids.may_repeat(mine))
        column = pq.read_table(folder / IDS)["id"].take(rows) if len(rows) else []
        given = {int(row): (str(one), ids.of(str(one))) for row, one in zip(rows, column, strict=True)}
        found.append({row: own for row, (one, own) in given.items() if own != one})
    return found
