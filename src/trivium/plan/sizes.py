"""Upper limits for the numbers of a plan: above everything that was built, and low enough that 64-bit integers hold all
totals and that every plan can be priced."""

from typing import Annotated

from pydantic import Field

from trivium.config import Positive

MOST_LAYERS = 10_000
MOST_COLUMNS = 1_000_000  # of the residual stream, of a head; and heads
MOST_WIDE = 10_000_000  # columns of the feed-forward layer
MOST_IDS = 100_000_000
MOST_POSITIONS = 1_000_000_000
MOST_SEQUENCES = 1_000_000  # of a batch
MOST_RANKS = 1_000_000

Layers = Annotated[Positive, Field(le=MOST_LAYERS)]
Columns = Annotated[Positive, Field(le=MOST_COLUMNS)]
Wide = Annotated[Positive, Field(le=MOST_WIDE)]
Ids = Annotated[Positive, Field(le=MOST_IDS)]
Positions = Annotated[Positive, Field(le=MOST_POSITIONS)]
Sequences = Annotated[Positive, Field(le=MOST_SEQUENCES)]
Degree = Annotated[Positive, Field(le=MOST_RANKS)]
