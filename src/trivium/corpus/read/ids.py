"""Unique document ids. Files number their rows from 0 each, so a number is appended to repeated ids."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.publish.store import PASSING_PACKING
from trivium.corpus.work import mapped, write_array

Keys = NDArray[np.uint64]
IDS, KEYS = "ids.parquet", "keys.npy"  # files of a part


class OwnIds:
    """Renames repeated ids to `7`, `7~2`, …, in the same way whenever the same ids come in the same order.

    Memory: eight bytes for each id of the corpus, and the ids that repeat.
    """

    def __init__(self, keys: Keys) -> None:
        """keys: of all ids of the corpus."""
        self._keys = np.sort(keys)
        self._repeated = np.unique(self._keys[1:][self._keys[1:] == self._keys[:-1]])
        self._times: dict[str, int] = {}

    def may_repeat(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of these ids may occur more than once in the corpus, so that they need renaming."""
        return _among(keys, self._repeated)

    def of(self, identity: str) -> str:
        """Return the id itself the first time, and then with the next number that no id of the corpus has."""
        if not self.may_repeat(keys_of([identity]))[0]:
            return identity
        times = self._times.get(identity, 0) + 1
        while times > 1 and _among(keys_of([f"{identity}~{times}"]), self._keys)[0]:
            times += 1
        self._times[identity] = times
        return identity if times == 1 else f"{identity}~{times}"


def keys_of(identities: Sequence[str]) -> Keys:
    """Return a 64-bit hash of each id. A collision only costs a needless look-up."""
    digests = (blake2b(one.encode("utf-8", "surrogatepass"), digest_size=8).digest() for one in identities)
    return np.frombuffer(b"".join(digests), np.uint64)


def _among(keys: Keys, ranked: Keys) -> NDArray[np.bool_]:
    """Return which of these keys are among `ranked`, which is sorted."""
    if not len(ranked):
        return np.zeros(np.shape(keys), bool)
    at = np.searchsorted(ranked, keys)
    return np.asarray(ranked[np.minimum(at, len(ranked) - 1)] == keys)


def write_ids(into: Path, ids: Sequence[str]) -> None:
    """Write the ids of a part's documents, as they were read, into its folder."""
    write_array(into / KEYS, keys_of(ids))
    pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), into / IDS, **PASSING_PACKING)


def names_in(folders: Sequence[Path]) -> list[dict[int, str]]:
    """Return, for each part, the rows whose documents need another id, and that id."""
    # Copied, because a mapped file stays open, and a process may only have about a thousand open files.
    keys = [mapped(folder / KEYS).copy() for folder in folders]
    ids = OwnIds(np.concatenate(keys))
    found: list[dict[int, str]] = []
    for folder, mine in zip(folders, keys, strict=True):
        rows = np.flatnonzero(ids.may_repeat(mine))
        column = pq.read_table(folder / IDS)["id"].take(rows) if len(rows) else []
        given = {int(row): (str(one), ids.of(str(one))) for row, one in zip(rows, column, strict=True)}
        found.append({row: own for row, (one, own) in given.items() if own != one})
    return found
