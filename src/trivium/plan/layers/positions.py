"""How positions enter the model: a learned table that is added to the embedding, or rotated queries and keys."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Number, Part, Place, Row
from trivium.plan.rope_scaling import RopeScaling


def position_rows(at: Place) -> Number:
    """Rows of position numbers: each sequence has its own where packed documents are separate."""
    rows: Number = np.where(np.asarray(at.apart) > 0, at.positions, at.local_sequence)
    return rows


@dataclass(frozen=True)
class Learned(Part):
    """One learned vector for each of `length` positions."""

    length: int
    hidden: int

    def rows(self) -> Iterator[Row]:
        yield Row("positions.weight", (self.length, self.hidden), per_position=True)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(position_rows(at), "index")


@dataclass(frozen=True)
class Rotary(Part):
    """Rotates pairs of columns of queries and keys by an angle that grows with the position (arXiv 2104.09864)."""

    columns: int
    base: float
    scaling: RopeScaling | None

    @classmethod
    def of(cls, form: LayerForm) -> "Rotary":
        """The rotation that the settings describe."""
        return cls(form.head_columns, form.rope_base, form.rope_scaling)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(position_rows(at) * self.columns)  # sines and cosines
