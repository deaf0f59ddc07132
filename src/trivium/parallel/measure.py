"""Count the bytes that autograd keeps for backward."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Counted:
    """Storages kept by one forward: address -> bytes."""

    storages: dict[int, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes kept, each storage once."""
        return sum(self.storages.values())


class SavedBytes:
    """Counts what forwards keep, besides the weights themselves (`known`: addresses of their storages)."""

    def __init__(self, known: Set[int]) -> None:
        self._known = known

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        """Count what the forward inside keeps."""
        counted = Counted()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                counted.storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield counted
