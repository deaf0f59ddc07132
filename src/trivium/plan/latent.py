"""The settings of latent attention."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from trivium.config import Config
from trivium.plan.sizes import Columns


class Latent(Config):
    """Keys and values of all heads are products with one latent vector for each position, which is all that generation
    caches, beside one rotated key that all heads share (DeepSeek-V2, arXiv 2405.04434)."""

    kv_rank: Columns  # columns of the latent of keys and values
    query_rank: Columns | None = None  # columns of the latent of queries; None: queries are a product with x
    plain_columns: Columns  # columns of a head of queries and keys that are not rotated
    rotated_columns: Columns  # columns of a head of queries and keys that are rotated; heads share those of the keys
    value_columns: Columns  # columns of a head of values
    norm_epsilon: Annotated[float, Field(ge=1e-30)] = 1e-6  # added under the square root of the norms of latents

    @property
    def head_columns(self) -> int:
        """Columns of a head of queries and keys."""
        return self.plain_columns + self.rotated_columns

    def problems(self) -> Iterator[str]:
        """Yield the contradictions among the settings."""
        if self.rotated_columns % 2:
            yield (
                f"plan.model.latent.rotated_columns ({self.rotated_columns}) must be even: rotary positions rotate "
                f"pairs of columns"
            )
