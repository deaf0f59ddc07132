"""Positions of tokens in the model: a learned table that is added to the embedding, or rotated queries and keys."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Number, Part, Place, Row
from trivium.plan.rope_scaling import RopeScaling


def position_rows(at: Place) -> Number:
    """Rows of position numbers: each sequence has its own where packed documents are separate."""
    rows: Number = np.where(np.asarray(at.apart) > 0, at.positions, at.local_sequence)
    return rows


@dataclass(frozen=True)
class Learned(Part):
    """One learned vector for each of `length` positions."""

    length: int
    hidden: int

    def rows(self) -> Iterator[Row]:
        yield Row("positions.weight", (self.length, self.hidden), per_position=True)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(position_rows(at), "index")


@dataclass(frozen=True)
class Rotary(Part):
    """Rotates pairs of columns of queries and keys by an angle that grows with the position (arXiv 2104.09864).

    neighbours: whether the columns of a pair are neighbours, not half of `columns` apart. last: whether the last
    columns of a head are rotated, not the first, where a head has more of them.
    """

    columns: int
    base: float
    scaling: RopeScaling | None
    neighbours: bool = False
    last: bool = False

    @classmethod
    def of(cls, form: LayerForm) -> "Rotary":
        """The rotation that the settings describe."""
        columns, latent = form.head_columns if form.rope_columns is None else form.rope_columns, False
        if form.attention == "latent" and form.latent is not None:
            columns, latent = form.latent.rotated_columns, True
        return cls(columns, form.rope_base, form.rope_scaling, form.rope_pairs == "neighbours", latent)

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.positions != "rotary":
            yield from cls._unread(form)
        elif form.rope_columns is not None and (form.rope_columns % 2 or form.rope_columns > form.head_columns):
            yield (
                f"plan.model.rope_columns ({form.rope_columns}) must be even and at most the columns of a head "
                f"({form.head_columns}): rotary positions rotate pairs of columns"
            )
        elif form.rope_columns is None and form.head_columns % 2:
            name = "hidden / heads" if form.head_width is None else "head_width"
            value = (
                f"{form.hidden} / {form.heads} = {form.head_columns}" if form.head_width is None else form.head_width
            )
            yield (
                f"plan.model.{name} ({value}) must be even: rotary positions rotate pairs of columns; nearest: "
                f"{form.head_columns - 1 or 2} or {form.head_columns + 1} columns"
            )
        yield from cls.problems_of_scaling(form)

    @classmethod
    def problems_of_scaling(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among the settings of the scaling."""
        if form.rope_scaling is not None:
            yield from form.rope_scaling.problems(form.rope_base)

    @classmethod
    def _unread(cls, form: LayerForm) -> Iterator[str]:
        """Settings of rotary positions, where positions are learned."""
        for name in ("rope_base", "rope_columns", "rope_pairs", "rope_scaling"):
            default = LayerForm.model_fields[name].default
            if getattr(form, name) != default:
                value = (
                    f"of kind '{form.rope_scaling.kind}'"
                    if name == "rope_scaling" and form.rope_scaling
                    else getattr(form, name)
                )
                shown = "null" if default is None else default if isinstance(default, str) else f"{default:g}"
                yield (
                    f"plan.model.{name} is {value}, and plan.model.positions 'learned' has no rotation; set "
                    f"plan.model.positions=rotary or plan.model.{name}={shown}"
                )

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(position_rows(at) * self.columns)  # sines and cosines
