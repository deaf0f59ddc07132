"""Latent attention: queries, keys and values are made of latents with few columns (DeepSeek-V2, arXiv 2405.04434).

The products that make the latents, and the norms of latents, are outside of the tensor region: every tensor rank holds
their weights, and computes the positions that it has there. What enters the region are the latents, which are narrower
than the residual stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.plan.latent import Latent
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import (
    Division,
    Exchanged,
    Kept,
    Kind,
    Moved,
    Number,
    Part,
    Place,
    Product,
    Row,
    Scores,
    linear,
    vector,
)
from trivium.plan.layers.positions import Rotary

# Where `problems` asks for the settings, a plan can still be described, and checked for other problems.
NOT_GIVEN = Latent(kv_rank=1, plain_columns=1, rotated_columns=2, value_columns=1)
# Settings of other kinds of attention.
UNREAD = ("kv_heads", "head_width", "rope_columns", "qk_norm", "score_cap")


@dataclass(frozen=True)
class AttentionLatent(Part):
    """`heads` heads of queries and keys with plain and rotated columns, and of values with columns of their own.

    scale: the factor of the scores; None for 1 / sqrt(columns of a head). window: positions that a query attends to,
    itself included; None: all before it.
    """

    hidden: int
    heads: int
    latent: Latent
    rotary: Rotary
    scale: float | None
    window: int | None

    @classmethod
    def of(cls, form: LayerForm) -> "AttentionLatent":
        """The attention that the settings describe."""
        return cls(
            hidden=form.hidden,
            heads=form.heads,
            latent=form.latent or NOT_GIVEN,
            rotary=Rotary.of(form),
            scale=form.scale_of_scores,
            window=None if form.window is None or form.window >= form.sequence else form.window,
        )

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.latent is None:
            yield (
                "plan.model.attention is 'latent', and plan.model.latent is not given; set "
                "plan.model.latent.kv_rank, .plain_columns, .rotated_columns and .value_columns"
            )
            return
        yield from form.latent.problems()
        yield from Rotary.problems_of_scaling(form)
        if form.positions != "rotary":
            yield (
                f"plan.model.positions is '{form.positions}', and plan.model.attention 'latent' rotates "
                f"plan.model.latent.rotated_columns of each head; set plan.model.positions=rotary"
            )
        if form.bias != "none":
            yield (
                f"plan.model.bias is '{form.bias}', and plan.model.attention 'latent' has no biases; set "
                f"plan.model.bias=none"
            )
        for name in UNREAD:
            value, default = getattr(form, name), LayerForm.model_fields[name].default
            if value != default:
                shown = "null" if default is None else default
                yield (
                    f"plan.model.{name} is {value}, and plan.model.attention 'latent' has no such setting; set "
                    f"plan.model.{name}={shown}, and the sizes of plan.model.latent"
                )

    @property
    def queries(self) -> int:
        """Columns of all queries, and of all keys."""
        return self.heads * self.latent.head_columns

    @property
    def values(self) -> int:
        """Columns of all values."""
        return self.heads * self.latent.value_columns

    @property
    def expanded(self) -> int:
        """Columns that the latent of keys and values is expanded to: the plain ones of all keys, and all values."""
        return self.heads * self.latent.plain_columns + self.values

    @property
    def kv_columns(self) -> int:
        """Columns of a position's latent of keys and values, with the rotated key that heads share."""
        return self.latent.kv_rank + self.latent.rotated_columns

    def rows(self) -> Iterator[Row]:
        kv_rank, query_rank = self.latent.kv_rank, self.latent.query_rank
        if query_rank is None:
            yield from linear("query", (self.queries, self.hidden), split=0, bias=False)
        else:
            yield Row("query_down.weight", (query_rank, self.hidden), per_position=True)
            yield vector("query_norm.weight", query_rank, "ones", per_position=True)
            yield from linear("query_up", (self.queries, query_rank), split=0, bias=False)
        yield Row("kv_down.weight", (self.kv_columns, self.hidden), per_position=True)
        yield vector("kv_norm.weight", kv_rank, "ones", per_position=True)
        yield from linear("kv_up", (self.expanded, kv_rank), split=0, bias=False)
        yield from linear("out", (self.hidden, self.values), split=1, bias=False)

    def divisions(self) -> Iterator[Division]:
        yield Division("heads", self.heads, "heads", "heads")

    def entering(self, hidden: int) -> tuple[int, ...]:
        return (
            hidden if self.latent.query_rank is None else self.latent.query_rank,
            self.latent.kv_rank,
            self.latent.rotated_columns,
        )

    def products(self, at: Place) -> list[Product]:
        kv_rank, query_rank = self.latent.kv_rank, self.latent.query_rank
        # What is outside of the region is divided over the ranks that divide the positions there.
        down = [
            Product(columns / at.along, self.hidden, enters=True, outer=True)
            for columns in (query_rank, self.kv_columns)
            if columns
        ]
        return [
            *down,
            Product(self.queries / at.tensor, query_rank or self.hidden, enters=True),
            Product(self.expanded / at.tensor, kv_rank, enters=True),
            Product(self.hidden, self.values / at.tensor, enters=False),
        ]

    def scores(self, at: Place) -> Scores:
        heads = np.maximum(1, at.micro * self.heads / at.tensor)
        reach = at.sequence if self.window is None else np.minimum(self.window, at.sequence)
        # Of the two products one is as wide as keys, the other as values.
        width = (self.latent.head_columns + self.latent.value_columns) / 2
        return Scores(heads, at.local_sequence, at.sequence, width, reach)

    def exchanged(self, at: Place) -> Exchanged:
        queries, values = self.queries / at.tensor, self.values / at.tensor
        return Exchanged(ring=queries + values, into=2 * queries + values, out=values)

    def moved(self, at: Place) -> Moved:
        # Norms of latents outside of the region; inside, queries are rotated and keys put together.
        latents = at.positions * (self.latent.kv_rank + (self.latent.query_rank or 0)) / at.along
        split, kv = at.positions * self.queries / at.tensor, at.positions * self.expanded / at.tensor
        return Moved(4.0 * latents + 8.0 * split, 8.0 * latents + 8.0 * split, 4.0 * kv)

    def kept(self, at: Place) -> Iterator[Kept]:
        kv_rank, query_rank = self.latent.kv_rank, self.latent.query_rank or 0
        here = at.positions / at.along
        yield Kept(here * (2 * (kv_rank + query_rank) + self.latent.rotated_columns))  # latents before and after norms
        yield Kept(here * (2 if query_rank else 1), "wide")  # what the norms divide by
        yield Kept(at.positions * self.values / at.tensor)  # what `out` reads
        # What the core of attention reads, which it keeps only where it is computed again.
        reads: Any = at.positions * (self.queries + self.expanded) / at.tensor
        reads = reads + (np.asarray(at.along) > 1) * at.positions * self.latent.rotated_columns
        yield Kept(reads)
        yield Kept(-reads, recomputed="attention")
        yield from (Kept(elements, kind, "attention") for elements, kind in self._core(at))

    def _core(self, at: Place) -> Iterator[tuple[Number, Kind]]:
        """Yield what attention keeps between its products, counted from the layers in `model/layers`."""
        queries, values = at.positions * self.queries / at.tensor, at.positions * self.values / at.tensor
        yield at.positions * self.heads / at.tensor, "wide"  # logarithms of the softmax's sums
        yield 2 * queries + values, "weights"  # rotated queries and keys, values
        yield from ((kept.elements, kept.kind) for kept in self.rotary.kept(at))
        context = np.asarray(at.context) > 1
        ring: Any = context & (np.asarray(at.ring) == 1)
        ulysses: Any = context & ~ring
        yield ulysses * values, "weights"
        yield ring * values, "wide"
        # On a rank with one head and wide weights, the result already is what `out` reads.
        wide = np.asarray(at.weight_bytes) == np.asarray(at.master_bytes)
        yield -1.0 * ring * wide * (np.asarray(self.heads / at.tensor) == 1) * values, "weights"
