"""Final norm, and the product with the vocabulary.

Legend: S positions, B sequences, H hidden, V vocabulary rows here.
"""

import torch
from torch import nn

from trivium.comms.collectives import all_gather
from trivium.kernels.operations import Operations
from trivium.model.inputs import Inputs
from trivium.model.layers.embedding import Table
from trivium.model.layers.kinds import kind_of
from trivium.objectives.distillation.objective import CROSS_ENTROPY, DIVERGENCE
from trivium.objectives.objective import LOSS, Terms, terms_of
from trivium.parallel.tensor.divergence import Teacher, Top, distillation, top_log_probabilities
from trivium.parallel.tensor.regions import Region, split_cross_entropy
from trivium.parallel.tensor.vocabulary import LossInPlace, loss_and_gradient, vocabulary_loss
from trivium.plan.model_shape import ModelShape

Losses = dict[str, torch.Tensor]  # sums over a micro-batch by name, or for each target what `Inputs.asked` says
TOP_IDS, TOP_LOGS = "top_ids", "top_logs"


class Head(nn.Module):
    """norm -> logits. A tied head takes the embedding's table; an untied one has its own `weight`."""

    def __init__(self, model: ModelShape, region: Region, operations: Operations) -> None:
        super().__init__()
        self.model, self.region = model, region
        norm = model.head_part.norm
        self.norm, self._product = kind_of(norm)(norm, operations), operations.products.product
        self._compiled: LossInPlace | None = None
        self._terms = terms_of(model)
        if model.head == "untied":
            rows = model.padded_vocabulary(region.group.size) // region.group.size
            self.weight = Table(rows, model.hidden).weight

    def compile_training(self) -> None:
        """Let torch.compile fuse the loss and its gradient, where the vocabulary is whole."""
        self._compiled = torch.compile(loss_and_gradient, dynamic=False)

    def forward(self, x: torch.Tensor, table: nn.Parameter, inputs: Inputs) -> torch.Tensor | Losses:
        """[S here, B, H] -> the losses, or without targets logits [S, B, vocabulary]."""
        return self.logits(x, table) if inputs.targets is None else self.losses(x, table, inputs)

    def local_logits(self, x: torch.Tensor, table: nn.Parameter) -> torch.Tensor:
        """[S here, B, H] -> [S, B, V]."""
        return self.finished(self.region.column_product(self.normed(x), table))

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is multiplied with the table, [..., H]."""
        y: torch.Tensor = self.norm(x)
        return y

    def finished(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the logits, given the products with rows of the table."""
        return scores

    def product(self, normed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """normed [..., H], rows of the table [R, H] -> their logits [..., R], on this rank."""
        return self.finished(self._product(normed, rows))

    def losses(self, x: torch.Tensor, table: nn.Parameter, inputs: Inputs) -> Losses:
        """Return the losses in nats by name, summed over targets with their weights; the same on every tensor rank.

        Sums, not means: the sum of the weights is known only over all ranks and micro-batches. The gradient of the
        cross-entropy is that of all losses together, which are made in one pass over the scores.
        """
        assert inputs.targets is not None and inputs.weights is not None, "losses need targets and their weights"
        group, vocabulary = self.region.group, self.model.vocabulary
        if isinstance(inputs.asked, Top):
            ids, logs = top_log_probabilities(self.local_logits(x, table), inputs.asked, group, vocabulary)
            return {TOP_IDS: ids, TOP_LOGS: logs}
        if inputs.asked == "each":
            return {LOSS: self._losses(x, table, inputs.targets, ())}
        if inputs.teacher is not None:
            return self._of_student(x, table, inputs, inputs.teacher)
        terms = self._terms if self.training else ()
        targets, weights = inputs.targets, inputs.weights
        if inputs.counted is not None and self.region.group.size == 1:
            x, targets, weights = (_at(inputs.counted, each) for each in (x, targets, weights))
        found = self._losses(x, table, targets, terms)
        cross_entropy, *others = found.unbind() if terms else (found,)
        each = {LOSS: cross_entropy, **{term.name: x.detach() for term, x in zip(terms, others, strict=True)}}
        return {name: _weighted(x, weights) for name, x in each.items()}

    def _of_student(self, x: torch.Tensor, table: nn.Parameter, inputs: Inputs, teacher: Teacher) -> Losses:
        """Return the losses of distillation."""
        group, targets, weights = self.region.group, inputs.targets, inputs.weights
        assert targets is not None and weights is not None, "losses need targets and their weights"
        if inputs.counted is not None and group.size == 1:
            x, targets, weights, ids, logs = (
                _at(inputs.counted, each) for each in (x, targets, weights, teacher.ids, teacher.logs)
            )
            teacher = teacher._replace(ids=ids, logs=logs)
        found = distillation(self.local_logits(x, table), targets, teacher, group, self.model.vocabulary)
        mixed, *parts = found.unbind()
        each = {LOSS: mixed, **dict(zip((CROSS_ENTROPY, DIVERGENCE), map(torch.detach, parts), strict=True))}
        return {name: _weighted(x, weights) for name, x in each.items()}

    def _losses(self, x: torch.Tensor, table: nn.Parameter, targets: torch.Tensor, terms: Terms) -> torch.Tensor:
        """Return the cross-entropy of each token, [S, B]; with terms [1 + terms, S, B]."""
        region, vocabulary = self.region, self.model.vocabulary
        if region.group.size == 1:
            compiled, later = self._compiled if self.training else None, region.weight_gradients
            given = self.normed(x), table, targets, vocabulary, later, region.arithmetic
            return vocabulary_loss(*given, compiled, terms)
        return split_cross_entropy(self.local_logits(x, table), targets, region.group, vocabulary, terms)

    @torch.no_grad()
    def logits(self, x: torch.Tensor, table: nn.Parameter) -> torch.Tensor:
        """[S here, B, H] -> [S, B, vocabulary] on every tensor rank, padding cut."""
        local = self.local_logits(x, table)
        if self.region.group.size == 1:
            return local[..., : self.model.vocabulary]
        local = local.permute(2, 0, 1).contiguous()
        return all_gather(local, self.region.group).permute(1, 2, 0)[..., : self.model.vocabulary]


def _at(places: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[S, B, …] -> [T, 1, …], what is at these places in [S B]."""
    return x.flatten(0, 1).index_select(0, places).unsqueeze(1)


def _weighted(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (losses * weights).sum()
