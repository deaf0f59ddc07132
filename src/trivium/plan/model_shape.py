"""The shape of a transformer, and what follows from it."""

import math
from collections import Counter
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from trivium.config import MOST, NotNegative, Tree
from trivium.plan.layers.ends import Embedding, Head
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.layer import Layer, embedding_of, head_of
from trivium.plan.layers.part import Division
from trivium.plan.layout import degrees_dividing
from trivium.plan.sizes import Ids, Layers

# What weights do not depend on: a training that begins with given ones may choose it.
_FREE = {"vocabulary_multiple", "dropout", "z_loss", "init_std", "documents", "end_of_text"}


class ModelShape(LayerForm):
    """A decoder-only transformer.

    family "gpt": learned positions, LayerNorm before each half block, GELU, biases (MT-NLG, section 3.2).
    family "llama": rotary positions, RMSNorm, SwiGLU, no biases but those of `qkv_bias`.
    """

    layers: Layers
    vocabulary: Ids  # token ids in use; the table is padded, and padding is never predicted
    vocabulary_multiple: Ids = 128  # each tensor rank holds a multiple of this many rows
    window_from: NotNegative = 0  # the first layer with the window; those before it see all
    # of the layers from there on, every so many-th sees all (2: every other); None: none does
    full_every: Annotated[int, Field(ge=2, le=MOST)] | None = None
    head: Literal["tied", "untied"] = "tied"  # does the output matrix share the embedding
    documents: Literal["joined", "apart"] = "joined"  # do packed documents see each other
    end_of_text: NotNegative = 0  # the id that ends a document
    # times the square of the logarithm of its sum of exponentials: added in training to the loss of each token that
    # counts, told apart from it, and no part of a validation (PaLM, OLMo-2: 1e-5 to 1e-4); 0: nothing
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    init_std: Annotated[float, Field(gt=0)] | None = None  # None: sqrt(1 / (3 hidden)), MT-NLG section 3.2

    @property
    def each_layer(self) -> tuple[Layer, ...]:
        """The layers in order."""
        return _layers_of(self)

    @property
    def counted_layers(self) -> tuple[tuple[Layer, int], ...]:
        """Each different layer, with how often it occurs."""
        return _counted_layers_of(self)

    @property
    def embedding_part(self) -> Embedding:
        """The embedding."""
        return embedding_of(self, self.vocabulary)

    @property
    def head_part(self) -> Head:
        """The last norm and the product with the table of outputs."""
        return head_of(self, self.vocabulary, tied=self.head == "tied")

    @property
    def divisions(self) -> tuple[Division, ...]:
        """The sizes that tensor ranks must divide."""
        every = (division for layer, _ in self.counted_layers for division in layer.divisions())
        return tuple(dict.fromkeys(every))

    @property
    def ffn_width(self) -> int:
        """Columns of the feed-forward layer."""
        return next(d.size for d in self.divisions if d.field == "ffn")

    @property
    def std(self) -> float:
        """Standard deviation of the initial weights."""
        return self.init_std or math.sqrt(1 / (3 * self.hidden))

    def window_of(self, layer: int) -> int | None:
        """Positions that a query of a layer sees, by the layer's number in the model; None: all before it."""
        hides = self.window is not None and self.window < self.sequence
        return self.window if hides and self.has_window(layer) else None

    def has_window(self, layer: int) -> bool:
        """Whether a layer is one of those with the window, by its number in the model."""
        number = layer - self.window_from + 1  # of the layers that may be
        return (
            self.window is not None and number > 0 and (not self.full_every or number % self.full_every > 0)
        )

    @property
    def layers_by_window(self) -> dict[int | None, int]:
        """How many layers see so many positions (None: all before)."""
        if self.window is None:
            return {None: self.layers}
        return dict(Counter(map(self.window_of, range(self.layers))))

    def padded_vocabulary(self, tensor: int) -> int:
        """Rows of the embedding over `tensor` ranks: the vocabulary rounded up so that each has as many."""
        multiple = self.vocabulary_multiple * tensor
        return math.ceil(self.vocabulary / multiple) * multiple

    def of_weights(self) -> Tree:
        """What weights depend on, as plain data, defaults spelt out: models that share it may exchange theirs. Of
        learned positions there are as many as a sequence has."""
        free = _FREE if self.family == "gpt" else {*_FREE, "sequence"}
        spelt_out = {"kv_heads": self.kv, "head_width": self.head_columns, "ffn": self.ffn_width}
        return {**self.model_dump(exclude=free), **spelt_out}

    def problems(self) -> list[str]:
        """Contradictions inside the shape."""
        found = []
        if self.head_width is None and self.hidden % self.heads:
            found.append(
                f"plan.model.hidden ({self.hidden}) must be a multiple of plan.model.heads ({self.heads}), where "
                f"plan.model.head_width is not given; "
                f"nearest heads: {' or '.join(map(str, degrees_dividing(self.hidden, self.heads)))}"
            )
        elif self.family == "llama" and self.head_columns % 2:
            name = "hidden / heads" if self.head_width is None else "head_width"
            value = (
                f"{self.hidden} / {self.heads} = {self.head_columns}"
                if self.head_width is None
                else self.head_width
            )
            found.append(
                f"plan.model.{name} ({value}) must be even: rotary positions turn pairs of columns; nearest: "
                f"{self.head_columns - 1 or 2} or {self.head_columns + 1} columns"
            )
        for name, of_gpt in (("qkv_bias", False), ("qk_norm", "none"), ("norm_position", "before")):
            value = getattr(self, name)
            if self.family == "gpt" and value != of_gpt:
                found.append(
                    f"plan.model.{name} is {str(value).lower()}, and plan.model.family 'gpt' has every bias and norms "
                    f"of its own; set plan.model.family=llama or plan.model.{name}={str(of_gpt).lower()}"
                )
        turns = ModelShape.model_fields["rope_base"].default
        if self.family == "gpt" and self.rope_base != turns:
            found.append(
                f"plan.model.rope_base is {self.rope_base:g}, and plan.model.family 'gpt' learns its positions; set "
                f"plan.model.family=llama or plan.model.rope_base={turns:g}"
            )
        if self.rope_scaling is not None:
            found += self.rope_scaling.problems(self.rope_base)
            if self.family == "gpt":
                found.append(
                    f"plan.model.rope_scaling is of kind '{self.rope_scaling.kind}', and plan.model.family 'gpt' "
                    f"learns its positions; set plan.model.family=llama or plan.model.rope_scaling=null"
                )
        found += self._window_problems()
        if self.end_of_text >= self.vocabulary:
            found.append(
                f"plan.model.end_of_text ({self.end_of_text}) must be one of the ids below plan.model.vocabulary "
                f"({self.vocabulary})"
            )
        if self.heads % self.kv:
            found.append(
                f"plan.model.heads ({self.heads}) must be a multiple of plan.model.kv_heads ({self.kv}): "
                f"each key-value head serves as many query heads"
            )
        return found

    def _window_problems(self) -> list[str]:
        if self.window is None:
            given = {"window_from": self.window_from or None, "full_every": self.full_every}
            return [
                f"plan.model.{name} is {value}, and plan.model.window is null, so that every layer sees all; set "
                f"plan.model.window to the positions that a query sees, or leave plan.model.{name} out"
                for name, value in given.items()
                if value is not None
            ]
        if self.window_from < self.layers:
            return []
        return [
            f"plan.model.window_from ({self.window_from}) must be below plan.model.layers ({self.layers}), which are "
            f"counted from 0: no layer would have plan.model.window ({self.window}); for that set "
            f"plan.model.window=null and plan.model.window_from=0"
        ]


@lru_cache(maxsize=1024)
def _layers_of(model: ModelShape) -> tuple[Layer, ...]:
    """The layers of a model; equal ones are one object."""
    windows = [model.window_of(n) for n in range(model.layers)]
    different = {w: Layer.of(model.model_copy(update={"window": w})) for w in dict.fromkeys(windows)}
    return tuple(different[w] for w in windows)


@lru_cache(maxsize=1024)
def _counted_layers_of(model: ModelShape) -> tuple[tuple[Layer, int], ...]:
    return tuple(Counter(_layers_of(model)).items())
