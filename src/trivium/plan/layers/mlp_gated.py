"""The feed-forward half with a gate: down(activation(gate(x)) * up(x)) (SwiGLU and others, arXiv 2002.05202)."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Division, Fused, Kept, Moved, Number, Part, Place, Product, Row, linear

COLUMNS_MULTIPLE = 64  # columns


@dataclass(frozen=True)
class MlpGated(Part):
    """Gate and up are one parameter [2, columns, hidden], split along its columns."""

    hidden: int
    columns: int

    @classmethod
    def of(cls, form: LayerForm) -> "MlpGated":
        """The feed-forward half that the settings describe. By default its three matrices have as many elements as
        the two of a plain one."""
        if form.ffn is not None:
            return cls(form.hidden, form.ffn)
        return cls(form.hidden, ceil(8 * form.hidden / 3 / COLUMNS_MULTIPLE) * COLUMNS_MULTIPLE)

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.bias == "all":
            yield (
                "plan.model.bias is 'all', and plan.model.feed_forward 'gated' has no biases; set plan.model.bias=none "
                "or, for biases of queries, keys and values, plan.model.bias=qkv"
            )

    def rows(self) -> Iterator[Row]:
        both = Fused((2, self.columns), along=0, sizes=(1, 1))
        yield Row("up.weight", (2, self.columns, self.hidden), split=1, fused=both)
        yield from linear("down", (self.hidden, self.columns), split=1, bias=False)

    def divisions(self) -> Iterator[Division]:
        yield Division("ffn", self.columns, "columns", "feed-forward columns")

    def products(self, at: Place) -> list[Product]:
        columns = self.columns / at.tensor
        return [Product(2 * columns, self.hidden, enters=True), Product(self.hidden, columns, enters=False)]

    def activation(self, at: Place) -> tuple[Number, Number, Number]:
        inner = self.columns / at.tensor
        return 2 * inner, inner, inner

    def moved(self, at: Place) -> Moved:
        inner = at.positions * self.columns / at.tensor
        return Moved(6.0 * inner, 10.0 * inner)

    def kept(self, at: Place) -> Iterator[Kept]:
        inner = at.positions * self.columns / at.tensor
        yield Kept(2 * inner)  # gate and up
        yield Kept(inner, recomputed="activation_function")
