"""Upper limits for the numbers of a plan. They exceed every existing model, and are so low that 64-bit integers hold
all totals and every plan can be priced."""

from typing import Annotated

from pydantic import Field

from trivium.config import Positive

MAX_LAYERS = 10_000
MAX_COLUMNS = 1_000_000  # width of the residual stream or of a head, and number of heads
MAX_FFN_COLUMNS = 10_000_000  # columns of the feed-forward layer
MAX_EXPERTS = 100_000  # experts of a layer
MAX_IDS = 100_000_000
MAX_POSITIONS = 1_000_000_000
MAX_SEQUENCES = 1_000_000  # sequences of a batch
MAX_PLAN_RANKS = 1_000_000

Layers = Annotated[Positive, Field(le=MAX_LAYERS)]
Columns = Annotated[Positive, Field(le=MAX_COLUMNS)]
Wide = Annotated[Positive, Field(le=MAX_FFN_COLUMNS)]
Ids = Annotated[Positive, Field(le=MAX_IDS)]
Positions = Annotated[Positive, Field(le=MAX_POSITIONS)]
Sequences = Annotated[Positive, Field(le=MAX_SEQUENCES)]
Degree = Annotated[Positive, Field(le=MAX_PLAN_RANKS)]
