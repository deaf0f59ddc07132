"""The feed-forward half of experts: a router chooses for each token, and a shared expert may take all of them.

Switch Transformer (arXiv 2101.03961), Mixtral (arXiv 2401.04088), DeepSeekMoE (arXiv 2401.06066).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.experts import Experts
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.mlp_gated import MlpGated
from trivium.plan.layers.part import Division, Fused, Kept, Moved, Number, Part, Place, Product, Row, linear

# Where `problems` asks for the settings, a plan can still be described, and checked for other problems.
NOT_GIVEN = Experts(count=1, chosen=1)


@dataclass(frozen=True)
class MlpExperts(Part):
    """Gate and up of all experts are one parameter [experts, 2, columns, hidden], and down is [experts, hidden,
    columns]; both are split along the columns, and divided among expert ranks."""

    hidden: int
    columns: int
    experts: Experts

    @classmethod
    def of(cls, form: LayerForm) -> "MlpExperts":
        """The feed-forward half that the settings describe."""
        experts = form.experts or NOT_GIVEN
        columns = MlpGated.of(form).columns if experts.columns is None else experts.columns
        return cls(form.hidden, columns, experts)

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.experts is None:
            yield (
                "plan.model.feed_forward is 'experts', and plan.model.experts is not given; set "
                "plan.model.experts.count and plan.model.experts.chosen"
            )
        else:
            yield from form.experts.problems()
        yield from MlpGated.problems(form)

    def rows(self) -> Iterator[Row]:
        E, F, H = self.experts.count, self.columns, self.hidden
        yield Row("router.weight", (E, H), summed=True)
        if self.experts.bias_rate is not None:
            yield Row("router.bias", (E,), decay=False, initial="zeros", trainable=False, wide=True)
        each_gate_and_up, each_down = Fused((2 * E, F), 0, (1,) * (2 * E)), Fused((E, H), 0, (1,) * E)
        yield Row("experts.up.weight", (E, 2, F, H), split=2, by_expert=True, fused=each_gate_and_up)
        yield Row("experts.down.weight", (E, H, F), split=2, initial="residual", by_expert=True, fused=each_down)
        if self.experts.shared:
            both = Fused((2, self.experts.shared), along=0, sizes=(1, 1))
            yield Row("shared.up.weight", (2, self.experts.shared, H), split=1, fused=both)
            yield from linear("shared.down", (H, self.experts.shared), split=1, bias=False)
        if self.experts.shared_gate:
            yield Row("shared_gate.weight", (1, H), summed=True)

    def divisions(self) -> Iterator[Division]:
        yield Division("experts.columns", self.columns, "columns", "columns of an expert")
        if self.experts.shared:
            yield Division("experts.shared", self.experts.shared, "columns", "columns of the shared expert")

    def load(self, at: Place) -> Number:
        """Rows of the busiest expert rank over their mean, with the imbalance of the settings."""
        expected = np.minimum(self.experts.imbalance, self.largest_load(at.expert))
        capacity = self.experts.capacity
        return expected if capacity is None else np.minimum(expected, capacity)

    def largest_load(self, ranks: Number) -> Number:
        """Rows of an expert rank over their mean if all tokens choose as many of its experts as possible."""
        visits = np.minimum(self.experts.chosen, self.experts.count / np.asarray(ranks))
        found: Number = visits * ranks / self.experts.chosen
        return found

    def visits(self, at: Place) -> Number:
        """Rows that the experts of the busiest rank compute for each position of a rank."""
        return self.experts.chosen * self.load(at)

    def products(self, at: Place) -> list[Product]:
        columns, visits, own = self.columns / at.tensor, self.visits(at), self.experts.count / at.expert
        return [
            Product(self.experts.count, self.hidden, enters=True, wide=True),
            Product(2 * columns, self.hidden, enters=True, visits=visits, matrices=own),
            Product(self.hidden, columns, enters=False, visits=visits, matrices=own, repeated=True),
            *self.beside_dispatch(at),
        ]

    def beside_dispatch(self, at: Place) -> list[Product]:
        columns = self.experts.shared / at.tensor
        if not self.experts.shared:
            return []
        return [Product(2 * columns, self.hidden, enters=True), Product(self.hidden, columns, enters=False)]

    def dispatched(self, at: Place) -> Number:
        return self.visits(at) * self.hidden

    def active_columns(self, at: Place) -> Number:
        """Columns of all experts that a position visits, on one tensor rank."""
        return (self.visits(at) * self.columns + self.experts.shared) / at.tensor

    def activation(self, at: Place) -> tuple[Number, Number]:
        return 2 * self.active_columns(at), self.active_columns(at)

    def moved(self, at: Place) -> Moved:
        """Scores in fp32; the activation function; rows that are copied to where their expert reads them, and summed.
        Expert ranks sort the rows that arrive, and sort the results back."""
        inner, rows = at.positions * self.active_columns(at), at.positions * self.visits(at) * self.hidden
        scores, sorts = 24.0 * at.positions * self.experts.count, 8.0 * (np.asarray(at.expert) > 1)
        return Moved(6.0 * inner + scores + (7.0 + sorts) * rows, 10.0 * inner + scores + (10.0 + sorts) * rows)

    def kept(self, at: Place) -> Iterator[Kept]:
        inner = at.positions * self.active_columns(at)
        yield Kept(2 * inner)  # gate and up
        yield Kept(inner, recomputed="activation_function")
        yield Kept(2 * at.positions * self.visits(at) * self.hidden)  # inputs and outputs of the chosen experts
        yield Kept(at.positions * self.experts.count, "wide")  # scores
        yield Kept(at.positions * self.experts.chosen, "index")
