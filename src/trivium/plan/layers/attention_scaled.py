"""Softmax attention whose scores have a scale of their own, and may be soft-capped (Gemma, Granite)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trivium.plan.layers.attention_softmax import AttentionSoftmax
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Place, Row


@dataclass(frozen=True)
class AttentionScaled(AttentionSoftmax):
    """softmax(cap · tanh(scale · q k / cap)) v.

    scale: None for 1 / sqrt(head_width). cap: None for no cap. offset_norms: norms of queries and keys have 1 + weight.
    """

    scale: float | None = None
    cap: float | None = None
    offset_norms: bool = False

    @classmethod
    def of(cls, form: LayerForm) -> "AttentionScaled":
        """The attention that the settings describe."""
        found = super().of(form)
        assert isinstance(found, cls), f"{found} is of another kind"
        offset = form.norm == "rms_norm_offset"
        return replace(found, scale=form.scale_of_scores, cap=form.score_cap, offset_norms=offset)

    @staticmethod
    def is_needed(form: LayerForm) -> bool:
        """Whether the settings ask for more than AttentionSoftmax has."""
        offset = form.norm == "rms_norm_offset" and form.qk_norm != "none"
        return form.scale_of_scores is not None or form.score_cap is not None or offset

    def rows(self) -> Iterator[Row]:
        for row in super().rows():
            yield replace(row, initial="zeros") if self.offset_norms and row.initial == "ones" else row

    def kept(self, at: Place) -> Iterator[Kept]:
        yield from super().kept(at)
        if self.offset_norms and self.qk_norm != "none":  # 1 + weight of queries and of keys
            each = self.qk_norm == "each_head"
            columns: Any = 2 * self.head_width if each else (self.queries + self.keys) / at.tensor
            yield Kept(columns, "wide", "attention")
        if self.scale is not None and self.rotary is None and self.qk_norm == "none":
            grouped: Any = np.asarray(self.heads / at.tensor) > self.kv_heads / at.tensor
            # Ranks that share a sequence scale the queries of a block each time they are read.
            copied: Any = (grouped & (np.asarray(self.kv_heads / at.tensor) > 1)) | (np.asarray(at.context) > 1)
            yield Kept((1 - copied) * at.positions * self.queries / at.tensor, "weights", "attention")
