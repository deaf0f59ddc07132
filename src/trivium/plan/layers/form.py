"""The settings of a layer, flat, as a person writes them. Each part reads those that concern it."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from trivium.config import Config, Short
from trivium.errors import nearest
from trivium.plan.experts import Experts
from trivium.plan.latent import Latent
from trivium.plan.rope_scaling import Above0, RopeScaling
from trivium.plan.sizes import Columns, Layers, Positions, Wide

QkNormName = Literal["none", "each_head", "all_heads"]
NormPosition = Literal["before", "after"]
Bias = Literal["all", "qkv", "none"]


class LayerForm(Config):
    """The settings of a layer. By default a layer of GPT-2, GPT-3 and MT-NLG."""

    hidden: Annotated[Columns, Short("hidden")]  # width of the residual stream
    heads: Annotated[Columns, Short("heads")]  # number of attention heads
    # softmax: queries, keys and values are products with the input; latent: keys and values are products with a latent,
    # which is narrow
    attention: Literal["softmax", "latent"] = "softmax"
    latent: Latent | None = None  # latents of attention 'latent'
    kv_heads: Columns | None = None  # key-value heads; fewer than heads: grouped-query attention; None: as many
    head_width: Columns | None = None  # columns of an attention head; None: hidden / heads
    bias: Bias = "all"  # linear layers that have biases: all, those of queries, keys and values, or none
    # RMSNorm of queries and keys before the rotation: in each head (Qwen3), or over all heads (OLMo-2)
    qk_norm: QkNormName = "none"
    window: Positions | None = (
        None  # sliding window: positions that a query attends to, itself included; None: all before it
    )
    score_scale: Above0 | None = None  # factor of attention scores; None: 1 / sqrt(columns of a head)
    score_cap: Above0 | None = None  # soft cap of attention scores: cap tanh(score / cap); None: no cap
    # plain: MLP; gated: SwiGLU or GeGLU; experts: a router chooses among gated ones for each token
    feed_forward: Literal["plain", "gated", "gated_gelu", "experts"] = "plain"
    experts: Experts | None = None  # experts of feed_forward 'experts'
    activation: Literal["gelu_tanh", "gelu"] = "gelu_tanh"  # activation of a plain MLP: GELU in its tanh form, or exact
    ffn: Wide | None = None  # columns of the MLP; None: 4 x hidden (plain), 8/3 x hidden rounded up to 64 (gated)
    # kind of all norms; rms_norm_offset: RMSNorm that multiplies by 1 + weight (Gemma)
    norm: Literal["layer_norm", "rms_norm", "rms_norm_offset"] = "layer_norm"
    norm_position: NormPosition = "before"  # whether the input of a sublayer is normalized, or its output (OLMo-2)
    norm_epsilon: Annotated[float, Field(ge=1e-30)] = 1e-5  # added under the square root of a norm
    # order of attention and MLP; side_by_side: both read the same input (GPT-NeoX); sandwich: sequential, with norms
    # before and after each (Gemma 2)
    wiring: Literal["sequential", "side_by_side", "sandwich"] = "sequential"
    positions: Literal["learned", "rotary"] = "learned"  # position encoding: a table of vectors, or rotary
    rope_base: Annotated[float, Field(gt=0)] = 10000.0  # base of the rotary frequencies
    rope_columns: Columns | None = None  # columns of each head that are rotated; None: all
    # columns of a head that are rotated together: d and d + rope_columns / 2 (Llama), or 2 d and 2 d + 1 (DeepSeek)
    rope_pairs: Literal["halves", "neighbours"] = "halves"
    rope_scaling: RopeScaling | None = None  # scaling of the rotary frequencies for longer sequences; None: no scaling
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # probability of dropout after the embedding and each sublayer
    embedding_scale: Above0 = 1.0  # factor of the embedding
    residual_scale: Above0 = 1.0  # factor of what attention and MLP add to the residual stream
    logits_scale: Above0 = 1.0  # factor of the logits
    logits_cap: Above0 | None = None  # soft cap of the logits: cap tanh(logit / cap); None: no cap
    sequence: Annotated[Positions, Short("sequence")]  # positions per sample

    @property
    def head_columns(self) -> int:
        """Columns of an attention head; of latent attention, those of its queries and keys."""
        if self.attention == "latent" and self.latent is not None:
            return self.latent.head_columns
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def scale_of_scores(self) -> float | None:
        """The factor of attention scores; None for 1 / sqrt(columns of a head)."""
        longer = 1.0 if self.rope_scaling is None else self.rope_scaling.factor_of_scores
        if longer == 1:
            return self.score_scale
        return longer * (1 / math.sqrt(self.head_columns) if self.score_scale is None else self.score_scale)

    @property
    def kv(self) -> int:
        """Key-value heads; query heads come in this many groups."""
        return self.heads if self.kv_heads is None else self.kv_heads


# Settings that may differ from layer to layer.
VARIED = (
    "heads",
    "attention",
    "latent",
    "kv_heads",
    "head_width",
    "bias",
    "qk_norm",
    "window",
    "feed_forward",
    "experts",
    "ffn",
    "norm_position",
    "rope_base",
    "rope_columns",
    "rope_pairs",
    "rope_scaling",
)


class Run(Config):
    """Equal layers in a row: `times` of them, with the settings in which they differ from the model's own.

    The settings are those of `VARIED`, beside `times`; what is not given is as in the model.
    """

    model_config = ConfigDict(extra="allow")

    times: Layers = 1  # layers

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in which these layers differ."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value if name == "times" else _setting(name, value) for name, value in given.items()}


def _setting(name: str, value: Any) -> Any:
    if name not in VARIED:
        raise ValueError(f"'{name}' is no setting in which layers may differ; {nearest(name, VARIED)}")
    try:
        return _adapter(name).validate_python(value, strict=not isinstance(value, Mapping))
    except ValidationError as error:
        raise ValueError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = LayerForm.model_fields[name]
    kind: Any = field.annotation
    return TypeAdapter(Annotated[(kind, *field.metadata)] if field.metadata else kind)
