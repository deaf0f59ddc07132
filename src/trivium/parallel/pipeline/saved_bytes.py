"""Count the bytes that autograd keeps for backward."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Counted:
    """Storages kept by one forward, by identity: their bytes, and the dtype of what they hold."""

    storages: dict[int, int] = field(default_factory=dict)
    dtypes: dict[int, torch.dtype] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes kept, each storage once."""
        return sum(self.storages.values())

    @property
    def elements(self) -> Counter[torch.dtype]:
        """Elements kept, each storage once, by dtype."""
        found: Counter[torch.dtype] = Counter()
        for identity, dtype in self.dtypes.items():
            found[dtype] += self.storages[identity] // dtype.itemsize
        return found


class SavedBytes:
    """Counts what forwards keep, besides the weights themselves."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        self._known = {_identity(w) for w in weights}

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        """Count what the forward inside keeps."""
        counted = Counted()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if _identity(tensor) not in self._known:
                counted.storages[_identity(tensor)] = tensor.untyped_storage().nbytes()
                counted.dtypes[_identity(tensor)] = tensor.dtype
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield counted


def _identity(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage. It stays when the storage is freed and allocated again,
    unlike the address."""
    return int(tensor.untyped_storage()._cdata)
