"""Causal softmax attention: grouped queries, a head width of its own, biases, norms of queries and keys, windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.plan.layers.form import LayerForm, QkNormName
from trivium.plan.layers.part import (
    Division,
    Exchanged,
    Fused,
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
from trivium.plan.layout import degrees_dividing


@dataclass(frozen=True)
class AttentionSoftmax(Part):
    """`heads` query heads of `head_width` columns over `kv_heads` key-value heads.

    qk_norm: RMSNorm over each head of queries and keys, or over all of them together. window: positions that a query
    attends to, itself included; None: all before it.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    qkv_bias: bool
    out_bias: bool
    qk_norm: QkNormName
    window: int | None
    rotary: Rotary | None
    epsilon: float

    @classmethod
    def of(cls, form: LayerForm) -> "AttentionSoftmax":
        """The attention that the settings describe."""
        return cls(
            hidden=form.hidden,
            heads=form.heads,
            kv_heads=form.kv,
            head_width=form.head_columns,
            qkv_bias=form.bias != "none",
            out_bias=form.bias == "all",
            qk_norm=form.qk_norm,
            window=None if form.window is None or form.window >= form.sequence else form.window,
            rotary=Rotary.of(form) if form.positions == "rotary" else None,
            epsilon=form.norm_epsilon,
        )

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.head_width is None and form.hidden % form.heads:
            yield (
                f"plan.model.hidden ({form.hidden}) must be a multiple of plan.model.heads ({form.heads}), where "
                f"plan.model.head_width is not given; "
                f"nearest heads: {' or '.join(map(str, degrees_dividing(form.hidden, form.heads)))}"
            )
        else:
            yield from Rotary.problems(form)
        if form.heads % form.kv:
            yield (
                f"plan.model.heads ({form.heads}) must be a multiple of plan.model.kv_heads ({form.kv}): "
                f"each key-value head serves as many query heads"
            )

    @property
    def queries(self) -> int:
        """Columns of all queries."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """Columns of all keys, and of all values."""
        return self.kv_heads * self.head_width

    def rows(self) -> Iterator[Row]:
        N, G, D = self.heads, self.kv_heads, self.head_width
        # Rows come in groups (the queries of a group, its key, its value), so that a split keeps groups whole.
        groups = Fused((G, N // G + 2, D), along=1, sizes=(N // G, 1, 1))
        qkv = (self.queries + 2 * self.keys, self.hidden)
        yield from linear("qkv", qkv, split=0, bias=self.qkv_bias, fused=groups)
        if self.qk_norm == "each_head":
            yield vector("query_norm.weight", D, "ones", summed=True)
            yield vector("key_norm.weight", D, "ones", summed=True)
        elif self.qk_norm == "all_heads":  # one weight for each column; the columns are split as the heads are
            yield vector("query_norm.weight", self.queries, "ones", split=0)
            yield vector("key_norm.weight", self.keys, "ones", split=0)
        yield from linear("out", (self.hidden, self.queries), split=1, bias=self.out_bias)

    def divisions(self) -> Iterator[Division]:
        yield Division("heads", self.heads, "heads", "heads")
        if self.kv_heads != self.heads:
            yield Division("kv_heads", self.kv_heads, "heads", "key-value heads")

    def products(self, at: Place) -> list[Product]:
        queries, keys = self.queries / at.tensor, self.keys / at.tensor
        return [Product(queries + 2 * keys, self.hidden, enters=True), Product(self.hidden, queries, enters=False)]

    def scores(self, at: Place) -> Scores:
        heads = np.maximum(1, at.micro * self.heads / at.tensor)
        reach = at.sequence if self.window is None else np.minimum(self.window, at.sequence)
        return Scores(heads, at.local_sequence, at.sequence, self.head_width, reach)

    def exchanged(self, at: Place) -> Exchanged:
        queries, keys = self.queries / at.tensor, self.keys / at.tensor
        return Exchanged(ring=2 * keys, into=queries + 2 * keys, out=queries)

    def moved(self, at: Place) -> Moved:
        split = at.positions * self.queries / at.tensor
        qkv = at.positions * (self.queries + 2 * self.keys) / at.tensor
        # The gradients of queries, keys and values are joined; those of biases are sums over positions.
        biases = self.out_bias * (qkv + at.positions * self.hidden / at.along)
        return Moved(6.0 * split, 6.0 * split, 4.0 * qkv + 2.0 * biases)

    @property
    def sums(self) -> int:
        return 2 if self.qk_norm == "all_heads" else 0  # squares of queries and of keys

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(2 * at.positions * (self.queries + self.keys) / at.tensor)  # what `qkv` wrote and `out` reads
        yield from (Kept(elements, kind, "attention") for elements, kind in self._core(at))

    def _core(self, at: Place) -> Iterator[tuple[Number, Kind]]:
        """Yield what attention keeps between its two products, counted from the layers in `model/layers`."""
        heads, kv_heads = self.heads / at.tensor, self.kv_heads / at.tensor
        queries, keys = at.positions * self.queries / at.tensor, at.positions * self.keys / at.tensor
        context = np.asarray(at.context) > 1
        ring: Any = context & (np.asarray(at.ring) == 1)
        ulysses: Any = context & ~ring
        grouped: Any = (np.asarray(heads) > kv_heads) & (np.asarray(kv_heads) > 1)
        yield at.positions * heads, "wide"  # logarithms of the softmax's sums
        if self.rotary is None and self.qk_norm == "none":
            yield grouped * ~ulysses * queries, "weights"  # queries that are copied out of their groups
        else:
            yield ~ulysses * (queries + keys), "weights"  # rotated or normalised queries and keys
        if self.rotary is not None:
            yield from ((kept.elements, kept.kind) for kept in self.rotary.kept(at))
        yield ulysses * queries, "weights"
        yield ring * queries, "wide"
        # On a rank with one head and wide weights, the result already is what `out` reads.
        wide = np.asarray(at.weight_bytes) == np.asarray(at.master_bytes)
        yield -1.0 * ring * wide * (np.asarray(heads) == 1) * queries, "weights"
        if self.qk_norm != "none":
            yield grouped * queries + ulysses * (queries + 2 * keys), "weights"
            yield at.positions * (heads + kv_heads if self.qk_norm == "each_head" else 2), "wide"
