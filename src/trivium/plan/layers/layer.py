"""A layer: its wiring, norm, attention and feed-forward half. The tables of kinds are here and nowhere else."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from trivium.plan.adapters import Adapted, AdapterGroup, Sums, adapted_rows, frozen
from trivium.plan.layers.attention_latent import AttentionLatent
from trivium.plan.layers.attention_scaled import AttentionScaled
from trivium.plan.layers.attention_softmax import AttentionSoftmax
from trivium.plan.layers.embedding import Embedding
from trivium.plan.layers.embedding_scaled import EmbeddingScaled
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.head import Head
from trivium.plan.layers.head_capped import HeadCapped
from trivium.plan.layers.head_scaled import HeadScaled
from trivium.plan.layers.mlp_experts import MlpExperts
from trivium.plan.layers.mlp_gated import MlpGated
from trivium.plan.layers.mlp_gated_gelu import MlpGatedGelu
from trivium.plan.layers.mlp_plain import MlpPlain
from trivium.plan.layers.norms import LayerNorm, RmsNorm
from trivium.plan.layers.norms_offset import RmsNormOffset
from trivium.plan.layers.part import Division, Kept, Number, Part, Place, Product, Row
from trivium.plan.layers.positions import Learned
from trivium.plan.layers.wiring import Sequential, with_norms
from trivium.plan.layers.wiring_sandwich import Sandwich
from trivium.plan.layers.wiring_scaled import SequentialScaled
from trivium.plan.layers.wiring_side_by_side import SideBySide

HALVES = {"attention": "attention", "mlp": "feed-forward"}  # names in parameters, and for people


# The kinds of part, by their names in settings.
NORMS: Mapping[str, type[LayerNorm | RmsNorm]] = MappingProxyType(
    {"layer_norm": LayerNorm, "rms_norm": RmsNorm, "rms_norm_offset": RmsNormOffset}
)
FEED_FORWARDS: Mapping[str, type[MlpPlain | MlpGated | MlpExperts]] = MappingProxyType(
    {"plain": MlpPlain, "gated": MlpGated, "gated_gelu": MlpGatedGelu, "experts": MlpExperts}
)
WIRINGS: Mapping[str, type[Sequential]] = MappingProxyType(
    {"sequential": Sequential, "side_by_side": SideBySide, "sandwich": Sandwich}
)


def _attention(form: LayerForm) -> type[AttentionSoftmax | AttentionLatent]:
    if form.attention == "latent":
        return AttentionLatent
    return AttentionScaled if AttentionScaled.is_needed(form) else AttentionSoftmax


@dataclass(frozen=True)
class Layer:
    """One layer of a transformer. adapted: its linear layers that have adapters; None if the model has none, and its
    parameters are not frozen."""

    wiring: Sequential
    norm: Part
    attention: Part
    mlp: Part
    adapted: tuple[Adapted, ...] | None = None

    @classmethod
    def of(cls, form: LayerForm) -> "Layer":
        """The layer that the settings describe."""
        return cls(
            wiring=(WIRINGS[form.wiring] if form.residual_scale == 1 else SequentialScaled).of(form),
            norm=NORMS[form.norm].of(form),
            attention=_attention(form).of(form),
            mlp=FEED_FORWARDS[form.feed_forward].of(form),
        )

    def with_adapters(self, groups: tuple[AdapterGroup, ...], number: int) -> "Layer":
        """The layer, as layer `number` of a model with adapters."""
        return replace(self, adapted=adapted_rows(groups, number, self.own_rows)) if groups else self

    @staticmethod
    def problems(form: LayerForm) -> list[str]:
        """Return the contradictions among the settings of a layer."""
        halves: list[type[Part]] = [_attention(form), FEED_FORWARDS[form.feed_forward]]
        parts: list[type[Part]] = [*halves, NORMS[form.norm], WIRINGS[form.wiring], SequentialScaled, HeadScaled]
        return [problem for part in parts for problem in part.problems(form)]

    @cached_property
    def halves(self) -> Mapping[str, Part]:
        """Attention and the feed-forward half, by their names in parameters."""
        return {name: getattr(self, name) for name in HALVES}

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The parameters of the layer in order, those of adapters last."""
        if self.adapted is None:
            return self.own_rows
        return (*frozen(self.own_rows), *(row for each in self.adapted for row in each.rows))

    @cached_property
    def own_rows(self) -> tuple[Row, ...]:
        """The parameters of the layer without adapters, in order."""
        both = (with_norms(self.wiring, self.norm, name, half) for name, half in self.halves.items())
        return tuple(row for rows in both for row in rows)

    def divisions(self) -> Iterator[Division]:
        """Yield the sizes that tensor ranks must divide."""
        for half in self.halves.values():
            yield from half.divisions()

    def products(self, at: Place) -> list[Product]:
        """Return its matrix products with weights, in order, those of adapters first."""
        own = [product for half in self.halves.values() for product in half.products(at)]
        if self.adapted is None:
            return own
        added = [product for each in self.adapted for product in each.products(at, self._visits(each, at))]
        return [*added, *(replace(product, trained=False) for product in own)]  # the last one is the layer's

    def kept(self, at: Place) -> Iterator[Kept]:
        """Yield what its backward needs."""
        yield from self.wiring.kept(at)
        for name, half in self.halves.items():
            for _ in self.wiring.norms_of(name):
                yield from self.norm.kept(at)
            yield from half.kept(at)
        for each in self.adapted or ():
            yield from each.kept(at, self._visits(each, at))

    def _visits(self, each: Adapted, at: Place) -> Number:
        half, _, name = each.base.name.partition(".")
        return self.halves[half].visits_of(replace(each.base, name=name), at)

    @property
    def entering(self) -> int:
        """Columns of all that enters a tensor region."""
        return sum(sum(half.entering(self.wiring.hidden)) for half in self.halves.values())

    @property
    def sums(self) -> int:
        """Numbers per position that are summed over tensor ranks, besides products."""
        return sum(half.sums for half in self.halves.values())

    @property
    def adapts_last_product(self) -> bool:
        """Whether an adapter computes something after the last product of the layer."""
        last = [*HALVES][-1]
        return any(
            e.base.name.startswith(f"{last}.") and e.base.splits_inputs and not e.base.inside
            for e in self.adapted or ()
        )

    def adapter_sums(self, expert: int = 1) -> Sums:
        """Return what tensor ranks exchange because of adapters. expert: as in `Adapted.sums`."""
        found = [each.sums(expert) for each in self.adapted or ()]
        return Sums(*(sum(numbers) for numbers in zip(*found, strict=True))) if found else Sums()


def embedding_of(form: LayerForm, vocabulary: int) -> Embedding:
    """The embedding that the settings describe."""
    positions = Learned(form.sequence, form.hidden) if form.positions == "learned" else None
    given = vocabulary, form.hidden, positions, form.dropout
    return Embedding(*given) if form.embedding_scale == 1 else EmbeddingScaled(*given, form.embedding_scale)


def head_of(form: LayerForm, vocabulary: int, *, tied: bool) -> Head:
    """The head that the settings describe."""
    given = NORMS[form.norm].of(form), vocabulary, form.hidden, tied
    if form.logits_cap is not None:
        return HeadCapped(*given, form.logits_cap)
    return Head(*given) if form.logits_scale == 1 else HeadScaled(*given, form.logits_scale)
