"""One micro-batch through all stages of a pipeline rank, by the kind of rank, for one plan or thousands at once."""

from typing import Any, NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.prices import Piece
from trivium.cost.stages import layers_of_ranks
from trivium.plan.layers.part import Number


class RankWork(NamedTuple):
    """One micro-batch through all stages of the first, a middle and the last pipeline rank, and of all ranks
    (whole)."""

    first: Piece
    middle: Piece
    last: Piece
    whole: Piece

    @property
    def busiest(self) -> Piece:
        """The piece of the slowest rank."""
        kinds = (self.first, self.middle, self.last)
        totals = np.stack(np.broadcast_arrays(*(kind.total for kind in kinds)))
        which = totals.argmax(axis=0)
        return Piece(*(_choose(which, parts) for parts in zip(*kinds, strict=True)))


def rank_work(case: Case, layer: Piece, embedding: Piece, head: Piece) -> RankWork:
    """Return the work of balanced stages. layer, embedding, head: of one micro-batch."""
    first, middle, last = layers_of_ranks(case)
    alone, inner = np.asarray(case.pipeline) == 1, np.asarray(case.pipeline) > 2
    return RankWork(
        first=layer.times(first).plus(embedding).plus(head.times(alone)),
        middle=layer.times(middle * inner),
        last=layer.times(last * ~alone).plus(head.times(~alone)),
        whole=layer.times(np.asarray(case.layers)).plus(embedding).plus(head),
    )


def _choose(which: Any, parts: tuple[Number, ...]) -> Number:
    return np.select([which == 0, which == 1], [parts[0], parts[1]], parts[2])
