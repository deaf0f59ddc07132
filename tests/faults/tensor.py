"""Faults of tensor and sequence parallelism, and of the split vocabulary."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from faults.mutant import fault, plan
from trivium.certify.layouts import ROTARY
from trivium.certify.ways import Replaced
from trivium.comms import collectives
from trivium.comms.group import Group, PendingResult
from trivium.kernels.sight import Sight
from trivium.model import inputs, stage
from trivium.model.layers import embedding, head
from trivium.model.layers.linear import RowLinear
from trivium.parallel.context.attention import Context
from trivium.parallel.sharding import shard
from trivium.parallel.tensor import column_product, norm_over_heads, vocabulary, weight_gradients
from trivium.parallel.tensor import regions as tensor
from trivium.parallel.tensor.regions import Region
from trivium.plan import buckets
from trivium.plan.parameters import Box

Tensor = torch.Tensor

SPLIT = plan(tensor=2)
SEQUENCE = plan(tensor=2, sequence_parallel=True)
Z_LOSS = plan(tensor=2, model={"z_loss": 0.05})
LLAMA = {**ROTARY, "kv_heads": 2, "head": "untied", "ffn": 24}
OLMO2 = {**LLAMA, "qk_norm": "all_heads", "norm_position": "after", "norm_epsilon": 0.1}


@fault(column_product, "all_reduce_begin", SPLIT)
def column_entry_not_reduced(original, mesh):
    """The gradient all-reduce at the entry of a column-split region is dropped, so each tensor rank continues
    with its own part of the gradient."""
    return lambda x, group: PendingResult(None, x)


@fault(column_product, "reduce_scatter_begin", SEQUENCE)
def sequence_entry_not_reduced(original, mesh):
    """Under sequence parallelism the backward of the entry takes its own positions without summing over ranks."""
    return lambda x, group: PendingResult(None, x.chunk(group.size)[group.index].contiguous())


@fault(column_product, "all_gather_begin", SEQUENCE)
def own_positions_instead_of_all(original, mesh):
    """Under sequence parallelism the backward does not gather the inputs again: the weight's gradient takes this
    rank's positions for everybody's."""
    return lambda x, group: PendingResult(None, torch.cat([x] * group.size))


@fault(weight_gradients, "all_gather_begin", plan(tensor=2, pipeline=2, sequence_parallel=True, schedule="zb-h1"))
def own_positions_put_off(original, mesh):
    """The same gather is missing where weight gradients are deferred to actions of their own."""
    return lambda x, group: PendingResult(None, torch.cat([x] * group.size))


@fault(collectives._SumOver, "forward", SPLIT)
def row_exit_not_summed(original, mesh):
    """The partial sums of a row-split layer are not added up."""
    return lambda ctx, x, group: x.clone()


@fault(RowLinear, "add_bias", SPLIT)
def row_bias_once_per_rank(original, mesh):
    """The bias of a row-split layer is added by every tensor rank before the sum."""

    def add_bias(self: RowLinear, x: Tensor) -> Tensor:
        return x if self.bias is None else x + self.bias * self.region.group.size

    return add_bias


@fault(buckets, "partial_over", SEQUENCE)
def final_norm_not_reduced(original, mesh):
    """Under sequence parallelism the final norm's gradient covers this rank's positions only (a norm outside the
    layers is easily forgotten in the list of parameters to reduce)."""
    return lambda plan, p: () if p.name.startswith("head.norm") else original(plan, p)


@fault(buckets, "partial_over", SEQUENCE)
def row_bias_gradient_not_reduced(original, mesh):
    """Under sequence parallelism the gradients of row-split biases are left partial."""
    return lambda plan, p: () if p.name.endswith(("out.bias", "down.bias")) else original(plan, p)


@fault(buckets, "partial_over", plan(tensor=2, model={**LLAMA, "qk_norm": "each_head"}))
def head_norm_gradient_not_reduced(original, mesh):
    """Without sequence parallelism the norm over each head of queries and keys keeps the gradient of this tensor rank's
    heads, which only other norms may do."""
    return lambda plan, p: original(plan, p) if plan.sequence_parallel else original(plan, replace(p, summed=False))


@fault(norm_over_heads, "all_reduce_", plan(tensor=2, model=OLMO2))
def squares_not_summed(original, mesh):
    """The norm over all heads of queries and keys divides by the squares of this tensor rank's heads, as if they were
    all there are."""
    return lambda x, group: x


@fault(norm_over_heads._NormOverHeads, "backward", plan(tensor=2, model=OLMO2))
def squares_gradient_not_summed(original, mesh):
    """The backward of the norm over all heads ignores that heads of other tensor ranks were divided by the sum too."""

    def backward(ctx: Any, *grads: Tensor) -> Any:
        with Replaced(norm_over_heads, "all_reduce_", lambda x, group: x).applied():
            return original(ctx, *grads)

    return backward


@fault(head, "split_cross_entropy", SPLIT)
def padding_enters_the_softmax(original, mesh):
    """Rows that pad the vocabulary take part in the softmax."""
    return lambda logits, targets, group, vocabulary, *more: original(logits, targets, group, 1 << 30, *more)


@fault(tensor, "all_reduce_", SPLIT)
def softmax_over_the_local_vocabulary(original, mesh):
    """The softmax is normalised over the rows of one tensor rank."""

    def all_reduce_(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
        if largest:
            return original(x, group, largest=True)
        return torch.cat([x[:1], original(x[1:].contiguous(), group)])

    return all_reduce_


@fault(tensor, "stretch", Z_LOSS)
def z_loss_without_its_gradient(original, mesh):
    """The z-loss of a split vocabulary is reported, but has no gradient."""
    return lambda logs, terms: torch.ones_like(logs)


@fault(vocabulary, "stretch", plan(pipeline=2, model={"z_loss": 0.05}))
def z_loss_as_if_not_squared(original, mesh):
    """The gradient of the z-loss lacks the factor 2 of its square."""
    return lambda logs, terms: (1 + original(logs, terms)) / 2


@fault(head, "_weighted", plan(model={"z_loss": 0.05, "documents": "apart", "end_of_text": 3}))
def z_loss_of_every_token(original, mesh):
    """The reported z-loss includes tokens that do not count."""

    def weighted(losses: Tensor, given: inputs.Inputs) -> Tensor:
        told = torch.is_grad_enabled() and not losses.requires_grad
        return losses.sum() if told else original(losses, given)

    return weighted


@fault(embedding, "embed", SPLIT)
def foreign_tokens_embedded(original, mesh):
    """Ids that another tensor rank holds are not masked: they add the row they were clamped to."""

    def embed(tokens: Tensor, weight: Tensor, group: Group) -> Tensor:
        return F.embedding((tokens - group.index * len(weight)).clamp(0, len(weight) - 1), weight)

    return embed


@fault(shard, "_counted", SPLIT)
def replicated_counted_per_rank(original, mesh):
    """Parameters that every tensor rank holds whole are counted once per rank in the global norm."""
    return lambda bucket: (slice(None),)


@fault(inputs, "keyed_dropout", plan(tensor=2, model={"dropout": 0.2}))
def masks_differ_between_tensor_ranks(original, mesh):
    """Tensor ranks drop different elements of an activation that all of them hold."""
    return lambda x, rate, *, site, **more: original(x, rate, site=f"{site} {mesh.tensor.index}", **more)


@fault(inputs, "keyed_dropout", plan(tensor=2, sequence_parallel=True, model={"dropout": 0.2}))
def masks_of_the_first_positions(original, mesh):
    """Under sequence parallelism every tensor rank draws the mask of the first positions."""

    def keyed_dropout(x: Tensor, rate: float, *, positions: Tensor, **more: Any) -> Tensor:
        return original(x, rate, positions=positions - positions.min(), **more)

    return keyed_dropout


@fault(Region, "positions", SEQUENCE)
def positions_of_the_first_part(original, mesh):
    """Every tensor rank takes the position embeddings of the first part of the sequence."""

    def positions(self: Region, sequence: int) -> slice:
        here: slice = original(self, sequence)
        return slice(0, here.stop - here.start)

    return positions


@fault(stage, "initial_values", SPLIT)
def shards_initialised_alike(original, mesh):
    """Tensor ranks draw their shard from the same stream, so that all start with the same rows."""

    def initial_values(parameter: Any, model: Any, seed: int, box: Box) -> Tensor:
        return original(parameter, model, seed, replace(box, start=tuple(0 for _ in box.start)))

    return initial_values


@fault(Context, "attend", plan(model=LLAMA), plan(pipeline=2, model=LLAMA))
def queries_of_other_groups(original, mesh):
    """Grouped-query attention repeats the key-value heads in turn instead of each for its own group."""

    def attend(self: Context, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        return original(self, q, k, v, sight)

    return attend
