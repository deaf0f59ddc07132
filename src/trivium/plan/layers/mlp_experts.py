"""The feed-forward half of experts: a router chooses for each token, and a shared expert may take all of them.

Switch Transformer (arXiv 2101.03961), Mixtral (arXiv 2401.04088), DeepSeekMoE (arXiv 2401.06066).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.experts import Experts
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.mlp_gated import MlpGated
from trivium.plan.layers.part import Dispatched, Division, Fused, Kept, Moved, Number, Part, Place, Product, Row

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
        gate_and_up = Fused((2, F), along=0, sizes=(1, 1))
        yield Row("experts.up.weight", (2, F, H), split=1, fused=gate_and_up, inside=True).of_experts(E)
        yield Row("experts.down.weight", (H, F), split=1, initial="residual", inside=True).of_experts(E)
        if self.experts.shared:
            both = Fused((2, self.experts.shared), along=0, sizes=(1, 1))
            yield Row("shared.up.weight", (2, self.experts.shared, H), split=1, fused=both, inside=True)
            yield Row("shared.down.weight", (H, self.experts.shared), split=1, initial="residual", inside=True)
        if self.experts.shared_gate:
            yield Row("shared_gate.weight", (1, H), summed=True, inside=True)

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

    def visits_of(self, row: Row, at: Place) -> Number:
        return self.visits(at) if row.by_expert else 1

    def products(self, at: Place) -> list[Product]:
        columns, visits, own = self.columns / at.tensor, self.visits(at), self.experts.count / at.expert
        return [
            Product(self.experts.count, self.hidden, enters=True, wide=True),
            Product(2 * columns, self.hidden, enters=True, visits=visits, matrices=own, whole=True),
            Product(self.hidden, columns, enters=False, visits=visits, matrices=own, repeated=True),
            *self.beside_dispatch(at),
        ]

    def beside_dispatch(self, at: Place) -> list[Product]:
        columns = self.experts.shared / at.tensor
        if not self.experts.shared:
            return []
        return [Product(2 * columns, self.hidden, enters=True, whole=True), Product(self.hidden, columns, enters=False)]

    def dispatched(self, at: Place) -> Dispatched:
        return Dispatched(self.visits(at), self.hidden, self.experts.count)

    def active_columns(self, at: Place) -> Number:
        """Columns of all experts that a position visits, on one tensor rank."""
        return (self.visits(at) * self.columns + self.experts.shared) / at.tensor

    def activation(self, at: Place) -> tuple[Number, Number, Number]:
        inner = self.active_columns(at)
        return 2 * inner, inner, inner

    def moved(self, at: Place) -> Moved:
        """Scores in fp32; the activation function; rows that are copied to where their expert reads them, and summed.
        Expert ranks sort the rows that arrive, and sort the results back."""
        inner, rows = at.positions * self.active_columns(at), at.positions * self.visits(at) * self.hidden
        scores, sorts = 24.0 * at.positions * self.experts.count, 8.0 * (np.asarray(at.expert) > 1)
        return Moved(6.0 * inner + scores + (7.0 + sorts) * rows, 10.0 * inner + scores + (10.0 + sorts) * rows)

    def kept(self, at: Place) -> Iterator[Kept]:
        given, positions, shared = self.experts, at.positions, self.experts.shared
        rows, visits = positions * self.visits(at), positions * given.chosen
        yield Kept(2 * rows * self.columns / at.tensor)  # gate and up
        yield Kept(rows, "wide")  # the weight of each row
        has_losses = given.balance_loss > 0 or given.router_z_loss > 0
        yield Kept((1 + has_losses) * positions * given.count, "wide")  # scores, and logits for the router's losses
        yield Kept(given.normalized * (visits + positions), "wide")  # scores of the chosen experts, and their sums
        yield Kept(2 * visits, "index")  # the chosen experts, and the order of rows
        narrow, several = np.asarray(at.weight_bytes) < np.asarray(at.master_bytes), np.asarray(at.expert) > 1
        yield Kept(narrow * (positions + given.count) * self.hidden, "wide")  # what the router reads
        yield Kept(several * rows * self.hidden)  # tokens that arrived
        yield Kept(several * rows, "index")  # and their order
        # All tensor ranks keep all of the input, unless a wider copy of it and the tokens that arrived are enough.
        spared = several & narrow & (shared == 0)
        yield Kept(~spared * positions * self.hidden - positions * self.hidden / at.along)
        yield Kept(2 * positions * shared / at.tensor)
        yield Kept(positions * shared / at.tensor, recomputed="activation_function")
        yield Kept(given.shared_gate * positions * (self.hidden + 1))  # the factor, and what it multiplies
