"""Offload: the share of the optimizer state and of the activations that a rank keeps in the memory of its host."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from trivium.config import Config

Share = Annotated[float, Field(ge=0, le=1)]
SHARE_TOLERANCE = 1e-9  # a share of 0.3 of 10 is 3, whatever its last binary digit

# Elements of a bucket whose state is on the device at once: long enough for the full bandwidth of a link.
PIECE_ELEMENTS = 1 << 22
PIECES_HERE = 3  # pieces on the device: one arrives, one is updated, one leaves
LAYERS_HERE = 2  # layers whose activations are on the device: one is needed, and one is on its way


class Offload(Config):
    """Shares of state and activations that a rank keeps in host memory. They are copied to the device before use, so
    that results are equal bit for bit."""

    optimizer: Share = 0.0  # share of the optimizer state, master weights included; it is reached with whole buckets
    activations: Share = 0.0  # share of the layers of a stage, the first ones, whose activations are kept on the host

    @property
    def is_used(self) -> bool:
        """Whether the host keeps anything."""
        return self.optimizer > 0 or self.activations > 0

    @property
    def words(self) -> str:
        """A description for people of what the host keeps."""
        shares = (("state", self.optimizer), ("activations", self.activations))
        return ", ".join(f"{share:.0%} of {what} on the host" for what, share in shares if share)

    def buckets(self, elements: Sequence[int]) -> int:
        """Return how many of a rank's buckets, the first ones, have their state on the host. elements: those that the
        rank updates of each."""
        wanted, n = self.optimizer * sum(elements) * (1 - SHARE_TOLERANCE), 0
        while sum(elements[:n]) < wanted:
            n += 1
        return n

    def layers(self, layers: int) -> int:
        """Return how many of a stage's layers, the first ones, have their activations on the host."""
        return math.ceil(self.activations * layers - SHARE_TOLERANCE)


NO_OFFLOAD = Offload()
