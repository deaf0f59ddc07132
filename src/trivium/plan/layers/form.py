"""The settings of a layer, flat, as a person writes them. Each part reads those that concern it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trivium.config import Config
from trivium.plan.rope_scaling import RopeScaling
from trivium.plan.sizes import Columns, Positions, Wide

Family = Literal["gpt", "llama"]
QkNormName = Literal["none", "each_head", "all_heads"]
NormPosition = Literal["before", "after"]
_WAS_BOOLEAN = {False: "none", True: "each_head"}
QkNorm = Annotated[
    QkNormName,
    BeforeValidator(lambda v: _WAS_BOOLEAN[v] if isinstance(v, bool) else v),
]


class LayerForm(Config):
    """The settings of a layer."""

    family: Family = "gpt"  # gpt: GPT-2's and MT-NLG's blocks; llama: rotary positions, RMSNorm, SwiGLU
    hidden: Columns  # width of the residual stream
    heads: Columns  # of attention; hidden / heads columns each
    kv_heads: Columns | None = None  # None: as many as heads; fewer is grouped-query attention
    head_width: Columns | None = None  # columns of a head; None: hidden / heads
    qkv_bias: bool = False  # llama: biases of queries, keys and values (Qwen2); gpt has every bias
    # llama: RMSNorm of queries and keys before they are turned, on each head (Qwen3) or over all of them (OLMo-2);
    # true and false, as older versions wrote it, are each_head and none
    qk_norm: QkNorm = "none"
    # llama: half blocks norm what they read, or what they add (OLMo-2); the final norm is there in both
    norm_position: NormPosition = "before"
    ffn: Wide | None = None  # None: 4 x hidden (gpt), 8/3 x hidden rounded up to 64 (llama)
    sequence: Positions  # positions per sample
    window: Positions | None = None  # positions that a query sees, itself included; None: all before it
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # after the embedding and each half block
    rope_base: Annotated[float, Field(gt=0)] = 10000.0  # of rotary positions
    rope_scaling: RopeScaling | None = None  # llama: angles slowed for longer sequences; None: as they are
    norm_epsilon: Annotated[float, Field(ge=1e-30)] = 1e-5  # what fp32 takes for 0 would divide 0 by 0

    @property
    def head_columns(self) -> int:
        """Columns of an attention head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def kv(self) -> int:
        """Key-value heads; query heads come in this many groups."""
        return self.heads if self.kv_heads is None else self.kv_heads
