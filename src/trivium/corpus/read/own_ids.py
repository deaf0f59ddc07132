"""Every document of a corpus gets an id of its own: files number their rows each from 0."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


class OwnIds:
    """Gives repeated ids numbers behind them: `7`, `7~2`, …; asked in the same order it gives the same ones.

    It holds eight bytes for each id of the corpus, and the names of those that repeat.
    """

    def __init__(self, keys: Keys) -> None:
        """keys: of all ids of the corpus."""
        self._keys = np.sort(keys)
        self._repeated = np.unique(self._keys[1:][self._keys[1:] == self._keys[:-1]])
        self._times: dict[str, int] = {}

    def may_repeat(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of these ids may stand more than once in the corpus; the others need not be asked for."""
        return _among(keys, self._repeated)

    def of(self, identity: str) -> str:
        """The id itself the first time, then with the next number behind it that no id of the corpus has."""
        if not self.may_repeat(keys_of([identity]))[0]:
            return identity
        times = self._times.get(identity, 0) + 1
        while times > 1 and self._is_there(f"{identity}~{times}"):
            times += 1
        self._times[identity] = times
        return identity if times == 1 else f"{identity}~{times}"

    def _is_there(self, identity: str) -> bool:
        return bool(_among(keys_of([identity]), self._keys)[0])


def keys_of(identities: Sequence[str]) -> Keys:
    """Eight bytes for each id. Different ids may have the same, once in billions: then one is asked for in vain."""
    digests = (blake2b(one.encode("utf-8", "surrogatepass"), digest_size=8).digest() for one in identities)
    return np.frombuffer(b"".join(digests), np.uint64)


def _among(keys: Keys, ranked: Keys) -> NDArray[np.bool_]:
    """Which of these keys are among others, which are in order."""
    if not len(ranked):
        return np.zeros(np.shape(keys), bool)
    at = np.searchsorted(ranked, keys)
    return np.asarray(ranked[np.minimum(at, len(ranked) - 1)] == keys)
