"""The feed-forward half without a gate: up, activation function, down."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Division, Kept, Moved, Number, Part, Place, Product, Row, linear


@dataclass(frozen=True)
class MlpPlain(Part):
    """down(function(up(x))), with `columns` columns in between. function: the name of its activation function."""

    hidden: int
    columns: int
    bias: bool
    function: str

    @classmethod
    def of(cls, form: LayerForm) -> "MlpPlain":
        """The feed-forward half that the settings describe."""
        columns = 4 * form.hidden if form.ffn is None else form.ffn
        return cls(form.hidden, columns, bias=form.bias == "all", function=form.activation)

    def rows(self) -> Iterator[Row]:
        yield from linear("up", (self.columns, self.hidden), split=0, bias=self.bias)
        yield from linear("down", (self.hidden, self.columns), split=1, bias=self.bias)

    def divisions(self) -> Iterator[Division]:
        yield Division("ffn", self.columns, "columns", "feed-forward columns")

    def products(self, at: Place) -> list[Product]:
        columns = self.columns / at.tensor
        return [Product(columns, self.hidden, enters=True), Product(self.hidden, columns, enters=False)]

    def activation(self, at: Place) -> tuple[Number, Number, Number]:
        return self.columns / at.tensor, self.columns / at.tensor, 0.0

    def moved(self, at: Place) -> Moved:
        inner = at.positions * self.columns / at.tensor
        biases = self.bias * (inner + at.positions * self.hidden / at.along)
        return Moved(4.0 * inner, 6.0 * inner, 2.0 * biases)

    def kept(self, at: Place) -> Iterator[Kept]:
        inner = at.positions * self.columns / at.tensor
        yield Kept(inner)  # what the activation function reads
        yield Kept(inner, recomputed="activation_function")
