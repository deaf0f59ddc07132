"""The shape of a transformer, and what follows from it."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from trivium.config import NotNegative, Short, Tree
from trivium.plan.adapters import AdapterGroup, group_of
from trivium.plan.experts import Experts
from trivium.plan.layers.embedding import Embedding
from trivium.plan.layers.form import LayerForm, Run
from trivium.plan.layers.head import Head
from trivium.plan.layers.layer import Layer, embedding_of, head_of
from trivium.plan.layers.part import Division
from trivium.plan.sizes import Ids, Layers, Positions

# What weights do not depend on: a training that begins with given ones may choose it.
_FREE = {"vocabulary_multiple", "dropout", "z_loss", "init_std", "documents", "end_of_text", "max_positions"}


class ModelShape(LayerForm):
    """A decoder-only transformer: embedding, layers, head.

    All layers have the model's own settings, but for those of `first` and `pattern`: the runs of `first` come first,
    and those of `pattern` are repeated until there are as many as `layers`. A window in five of six layers is
    `window: 1024, pattern: [{times: 5}, {window: null}]`.
    """

    layers: Annotated[Layers, Short("layers")]  # number of transformer blocks
    # number of token ids; the table is padded, and padding is never predicted
    vocabulary: Annotated[Ids, Short("vocabulary")]
    vocabulary_multiple: Ids = 128  # rows of the table on each tensor rank are padded to a multiple of this
    # the first layers, where they differ: mappings of times (their number) and of the model's settings that differ
    first: tuple[Run, ...] = ()
    # the other layers, where they differ: mappings as in first, which are repeated up to the last layer
    pattern: tuple[Run, ...] = ()
    # adapters of linear layers: mappings of match (a pattern of their names), kind and settings, of which the first
    # that matches counts; all other parameters are frozen
    adapters: tuple[AdapterGroup, ...] = ()
    head: Literal["tied", "untied"] = "tied"  # whether the output matrix is the embedding's table
    documents: Literal["joined", "apart"] = "joined"  # whether packed documents attend to each other
    end_of_text: NotNegative = 0  # id of the token that ends a document
    # longest sequence that the model reads after the training, if it is trained on shorter ones; None: sequence
    max_positions: Positions | None = None
    # factor of the z-loss, the squared log-sum-exp of the logits, in training (PaLM, OLMo-2: 1e-5 to 1e-4); it is
    # logged apart from the loss; 0: no z-loss
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    init_std: Annotated[float, Field(gt=0)] | None = (
        None  # standard deviation of initial weights; None: sqrt(1 / (3 hidden)) (MT-NLG section 3.2)
    )

    @property
    def each_layer(self) -> tuple[Layer, ...]:
        """The layers in order."""
        return _layers_of(self)

    @property
    def counted_layers(self) -> tuple[tuple[Layer, int], ...]:
        """Each distinct layer and how often it occurs."""
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
    def expert_counts(self) -> tuple[int, ...]:
        """The numbers of experts of its layers of experts, each once, ascending."""
        rows = (row for layer, _ in self.counted_layers for row in layer.rows if row.by_expert)
        return tuple(sorted({row.shape[0] for row in rows}))

    @property
    def ffn_width(self) -> int:
        """Columns of the feed-forward layer; of a layer of experts, those of one expert."""
        return next(d.size for d in self.divisions if d.field in ("ffn", "experts.columns"))

    @property
    def std(self) -> float:
        """Standard deviation of the initial weights."""
        return self.init_std or math.sqrt(1 / (3 * self.hidden))

    @property
    def experts_by_layer(self) -> dict[int, Experts]:
        """The settings of experts of each layer that has some, by its number."""
        every = enumerate(_forms_of(self))
        return {n: form.experts for n, form in every if form.feed_forward == "experts" and form.experts is not None}

    @property
    def in_use(self) -> "ModelShape":
        """The model as it is used after its training, with a sequence of `max_positions` if that is longer."""
        return self.model_copy(update={"sequence": max(self.sequence, self.max_positions or 0)})

    def form_of(self, layer: int) -> LayerForm:
        """The settings of a layer, by its number in the model."""
        return _forms_of(self)[layer]

    def padded_vocabulary(self, tensor: int) -> int:
        """Return the rows of the embedding over `tensor` ranks, a number or an array of numbers: the vocabulary rounded
        up so that each rank has a multiple of `vocabulary_multiple`."""
        multiple = self.vocabulary_multiple * tensor
        return -(-self.vocabulary // multiple) * multiple

    def of_weights(self) -> Tree:
        """Return the settings on which weights depend, as plain data with defaults spelt out. Models with equal
        settings may exchange weights. A learned table of positions has as many rows as a sequence."""
        free = _FREE if self.positions == "learned" else {*_FREE, "sequence"}
        spelt_out = {"kv_heads": self.kv, "head_width": self.head_columns, "ffn": self.ffn_width}
        experts = None if self.experts is None else self.experts.of_weights()
        return {**self.model_dump(exclude=free), **spelt_out, "experts": experts}

    def problems(self) -> list[str]:
        """Contradictions inside the shape."""
        first = sum(run.times for run in self.first)
        if first > self.layers:
            return [
                f"plan.model.first has {first} layers, more than plan.model.layers ({self.layers}); lower the times of "
                f"its runs, or raise plan.model.layers"
            ]
        found = [problem for form in dict.fromkeys(_forms_of(self)) for problem in Layer.problems(form)]
        if self.end_of_text >= self.vocabulary:
            found.append(
                f"plan.model.end_of_text ({self.end_of_text}) must be one of the ids below plan.model.vocabulary "
                f"({self.vocabulary})"
            )
        if self.max_positions is not None and self.positions == "learned":
            found.append(
                f"plan.model.max_positions ({self.max_positions}) needs rotary positions: a table of learned ones has "
                f"plan.model.sequence ({self.sequence}) rows; leave it out"
            )
        found += self._balance_problems()
        return list(dict.fromkeys(found)) or list(self._adapter_problems())

    @property
    def used_adapters(self) -> tuple[AdapterGroup, ...]:
        """The groups of adapters that take a linear layer; the model may have fewer layers than they were meant for."""
        layers = enumerate(self.each_layer if self.adapters else ())
        taken = {group_of(self.adapters, n, row) for n, layer in layers for row in layer.own_rows}
        return tuple(group for n, group in enumerate(self.adapters) if n in taken)

    @property
    def adapters_draw(self) -> bool:
        """Whether a training step draws random numbers for an adapter."""
        return any(group.made().draws for group in self.adapters)

    @property
    def adapters_remember(self) -> bool:
        """Whether adapters tell the next step something of the gradients."""
        return any(group.made().remembers for group in self.adapters)

    def _balance_problems(self) -> Iterator[str]:
        """Yield where layers are pooled whose loads cannot be."""
        every = self.experts_by_layer.values()
        if not any(e.balance_loss and e.balance_convention == "transformers" for e in every):
            return
        for name in ("count", "chosen", "balance_loss", "balance_convention", "balance_scope"):
            found = list(dict.fromkeys(getattr(e, name) for e in every))
            if len(found) > 1:
                yield (
                    f"plan.model.experts.{name} is {found[0]} in one layer and {found[1]} in another, and "
                    f"balance_convention 'transformers' pools layers; give all layers of experts the same, or take "
                    f"'megatron'"
                )

    def _adapter_problems(self) -> Iterator[str]:
        used = self.used_adapters
        of_experts = [(n, row) for n, layer in enumerate(self.each_layer) for row in layer.own_rows if row.by_expert]
        takes = {group_of(self.adapters, n, row): f"layers.{n}.{row.name}" for n, row in reversed(of_experts)}
        for number, group in enumerate(self.adapters):
            if number in takes and group.made().dropout > 0:
                yield (
                    f"plan.model.adapters.{number} takes {takes[number].removesuffix('.weight')} with dropout "
                    f"{group.made().dropout:g}, and adapters beside matrices of experts have dropout 0; put a group "
                    f"for these before it, or let its match leave them out, as layers.*.attention.* does"
                )
            if not any(group is each for each in used):
                yield (
                    f"plan.model.adapters.{number}.match is '{group.match}', and no linear layer has such a name that "
                    f"no group before it takes; a name is layers.0.attention.qkv"
                )


@lru_cache(maxsize=1024)
def _forms_of(model: ModelShape) -> tuple[LayerForm, ...]:
    """The settings of each layer; those of equal layers are one object."""
    own = LayerForm.model_construct(**{name: getattr(model, name) for name in LayerForm.model_fields})
    different = {id(run): own.model_copy(update=run.settings) for run in (*model.first, *model.pattern)}
    first = [different[id(run)] for run in model.first for _ in range(run.times)]
    pattern = [different[id(run)] for run in model.pattern for _ in range(run.times)] or [own]
    rest = max(0, model.layers - len(first))
    return (*first, *itertools.islice(itertools.cycle(pattern), rest))


@lru_cache(maxsize=1024)
def _layers_of(model: ModelShape) -> tuple[Layer, ...]:
    """The layers of a model; equal ones are one object."""
    forms = _forms_of(model)
    different = {form: Layer.of(form) for form in dict.fromkeys(forms)}
    return tuple(different[form].with_adapters(model.adapters, number) for number, form in enumerate(forms))


@lru_cache(maxsize=1024)
def _counted_layers_of(model: ModelShape) -> tuple[tuple[Layer, int], ...]:
    return tuple(Counter(_layers_of(model)).items())
