"""Tensor parallelism: regions, split linear layers, the split vocabulary and its cross-entropy.

Legend: S positions, B sequences, H hidden, V vocabulary rows on this rank, T = S x B tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F

from trivium.comms.collectives import all_reduce_, enter_whole, gather_sequence, scatter_sequence, sum_over
from trivium.comms.encodings import encoded
from trivium.comms.group import Group
from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.dtypes import NARROW
from trivium.objectives.objective import Terms
from trivium.parallel.tensor.column_product import Entry, column_product
from trivium.parallel.tensor.norm_over_heads import norm_over_heads
from trivium.parallel.tensor.row_product import Cut, linear, row_product
from trivium.parallel.tensor.vocabulary import BLOCK_ROWS, stretch, with_terms
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.messages import EncodingName

Tensor = torch.Tensor
# Up to this number of ids, CUDA uses another kernel for the gradient of an embedding (ATen/native/cuda/Embedding.cu).
MAX_DIRECT_IDS = 3072


@dataclass(frozen=True)
class Region:
    """A tensor region: the ranks that compute parts of one layer, and how activations enter and leave.

    Outside the region each rank holds the full activation, or its own positions with `split_sequence`.
    """

    group: Group
    split_sequence: bool
    arithmetic: Arithmetic
    weight_gradients: WeightGradients = field(default_factory=WeightGradients)
    row_chunks: int = 1  # chunks of row-parallel products, each reduced while the next is computed
    encoding: EncodingName = "exact"  # of activations and gradients that enter and leave
    ring: bool = False  # whether they go round a ring beside the products, where the sequence is split

    def __post_init__(self) -> None:
        _ = self.messages  # before anything is compiled: a graph cannot take the lock of a cached property

    @cached_property
    def messages(self) -> Group:
        """The ranks, with the encoding of what enters and leaves."""
        return encoded(self.group, self.encoding)

    def linear(
        self, x: Tensor, weight: torch.nn.Parameter, bias: Tensor | None = None, function: Activation | None = None
    ) -> Tensor:
        """Return x W^T (+ bias) with this rank's shard; with a function, of function(x), which the backward computes
        again. The weight gradient may be deferred."""
        if function is not None:
            return row_product(x, weight, bias, self.weight_gradients, self.arithmetic, function=function)
        return linear(x, weight, bias, self.weight_gradients, self.arithmetic)

    def column_product(self, x: Tensor, weight: torch.nn.Parameter, bias: Tensor | None = None) -> Tensor:
        """Enters the region: [S here, B, inputs] -> [S, B, outputs here], outputs split over the ranks."""
        if self.group.size == 1:
            return self.linear(x, weight, bias)
        entry = Entry(self.messages, self.split_sequence, self.ring)
        return column_product(x, weight, bias, self.weight_gradients, self.arithmetic, entry)

    def enter(self, x: Tensor) -> Tensor:
        """[S here, B, H] -> [S, B, H] on every rank; its gradient is a sum of the ranks' parts."""
        return gather_sequence(x, self.messages) if self.split_sequence else enter_whole(x, self.messages)

    def leave(self, x: Tensor) -> Tensor:
        """Partial sums [S, B, H] -> their sum, [S here, B, H]."""
        return scatter_sequence(x, self.messages) if self.split_sequence else sum_over(x, self.messages)

    def row_product(self, x: Tensor, weight: torch.nn.Parameter, function: Activation | None = None) -> Tensor:
        """Inputs split over the ranks, [S, B, inputs here] -> the complete sum, [S here, B, outputs]. With a function,
        of function(x), which the backward computes again."""
        later = self.weight_gradients
        if self.row_chunks > 1 or self.ring:
            cut = Cut(self.messages, self.split_sequence, self.row_chunks, self.ring)
            return row_product(x, weight, None, later, self.arithmetic, function=function, cut=cut)
        if function is None:
            return self.leave(self.linear(x, weight))
        return self.leave(row_product(x, weight, None, later, self.arithmetic, function=function))

    def norm_over_heads(
        self, q: Tensor, k: Tensor, of_q: Tensor, of_k: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """RMSNorm of queries and keys [B, heads here, S, D] over the heads of all ranks; weights [heads here x D]."""
        return norm_over_heads(q, k, of_q, of_k, epsilon=epsilon, group=self.group)

    @torch.no_grad()
    def summed(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the ranks, without a gradient."""
        return all_reduce_(x.contiguous(), self.group)

    @torch.no_grad()
    def square_sums(self, weight: Tensor) -> Tensor:
        """Return the sum of the squares of each row of a weight here [..., outputs, inputs], in fp32 or wider."""
        return weight.to(torch.promote_types(weight.dtype, torch.float32)).square().sum(-1)

    def positions(self, sequence: int) -> slice:
        """The positions this rank holds outside the region."""
        if not self.split_sequence:
            return slice(0, sequence)
        here = sequence // self.group.size
        return slice(self.group.index * here, (self.group.index + 1) * here)


def embed(tokens: Tensor, weight: Tensor, group: Group) -> Tensor:
    """Rows of a vocabulary split over the group; zero for ids that other ranks hold.

    tokens [S, B], weight [V, H]; returns partial sums [S, B, H]: leave the region to complete them. On a processor the
    gradient is sparse, the rows that were looked up: adding a whole table of zeros takes longer than all of them.
    """
    sparse = weight.device.type == "cpu"
    if group.size == 1:
        return look_up(tokens, weight, sparse=sparse)
    first = group.index * weight.shape[0]
    elsewhere = (tokens < first) | (tokens >= first + weight.shape[0])
    rows = look_up((tokens - first).masked_fill(elsewhere, 0), weight, sparse=sparse)
    return rows.masked_fill(elsewhere.unsqueeze(-1), 0)


def look_up(ids: Tensor, table: Tensor, *, sparse: bool) -> Tensor:
    """Rows of a table [rows, H], for ids of any shape. sparse: what the gradient is; a narrow one always, on a
    processor."""
    if table.dtype not in NARROW or (table.device.type != "cpu" and ids.numel() > MAX_DIRECT_IDS):
        return F.embedding(ids, table, sparse=sparse)
    kind = _NarrowLookUp if table.device.type == "cpu" else FewLookUps
    rows: Tensor = kind.apply(ids, table)
    return rows


@cache
def _say_nothing_of_checks() -> None:
    """torch 2.11 warns of a sparse tensor until somebody has said whether they should be checked: none is otherwise."""
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()


class _NarrowLookUp(torch.autograd.Function):
    """A processor adds a narrow gradient to its row once for each time that the row was looked up, rounding each time:
    a frequent token's row soon stops growing. Here they are added up in fp32, and rounded once."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (ids,), H = ctx.saved_tensors, ctx.shape[1]
        _say_nothing_of_checks()
        rows, where = ids.flatten().unique(return_inverse=True)
        given = grads[0].reshape(-1, H)
        sums = torch.zeros(len(rows), H).index_add_(0, where, given.float()).to(given.dtype)
        gradient = torch.sparse_coo_tensor(
            rows.unsqueeze(0), sums, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return None, gradient


class FewLookUps(torch.autograd.Function):
    """Look-up of at most MAX_DIRECT_IDS ids on a GPU, with an exact gradient.

    For so few ids, CUDA adds 32 rows at a time to the 16-bit gradient and rounds each time, and in some releases one
    batch may overtake another. For more ids it sorts them, adds the rows of each id in fp32 and rounds once. The
    backward therefore adds zeros for the first row until there are more ids.
    """

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (ids,), given = ctx.saved_tensors, grads[0].flatten(0, -2)
        more = MAX_DIRECT_IDS + 1 - len(given)
        ids, given = F.pad(ids.flatten(), (0, more)), F.pad(given, (0, 0, 0, more))
        return None, torch.ops.aten.embedding_dense_backward(given, ids, ctx.rows, -1, False)


class _SplitCrossEntropy(torch.autograd.Function):
    """Kept are the exponentials in the dtype of the logits; fp32 is there for some rows at a time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group, vocabulary: int, terms: Terms) -> Tensor:
        first, V = group.index * logits.shape[-1], logits.shape[-1]
        scores, ids = logits.flatten(0, -2), targets.flatten() - first
        wide = torch.float32 if logits.dtype in NARROW else logits.dtype
        real = min(max(0, vocabulary - first), V)  # padding is never predicted
        largest = ids.new_full(ids.shape, -torch.inf, dtype=wide)
        if real:
            largest.copy_(scores[:, :real].amax(-1))
        all_reduce_(largest, group, largest=True)
        here = (ids >= 0) & (ids < V)
        index = ids.masked_fill(~here, 0).unsqueeze(-1)
        # log of the target's exponential, from the rank that holds it; exp() may underflow, so keep the score.
        target = scores.gather(-1, index).squeeze(-1).to(wide).sub_(largest).masked_fill_(~here, 0)
        kept, own = torch.empty_like(scores), torch.empty_like(largest)
        for part, given, top, total in _some_rows(kept, scores, largest.unsqueeze(-1), own):
            found = torch.sub(given, top, out=part) if part.dtype == wide else _less(given, top)
            found.exp_()[:, real:] = 0
            torch.sum(found, -1, out=total)
            if found is not part:
                part.copy_(found)
        total, target = all_reduce_(torch.stack([own, target]), group)
        losses = total.log() - target
        if terms:  # dividing the sums of exponentials replaces multiplying the probabilities
            logs = largest + total.log()
            losses = with_terms(losses, logs, terms)
            total.div_(stretch(logs, terms))
        ctx.save_for_backward(kept, index, here, total)
        ctx.shape, ctx.terms = logits.shape, terms
        return losses.view(*losses.shape[:-1], *targets.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        kept, index, here, total = ctx.saved_tensors  # changed in place: a step runs its backward once
        grad = (grads[0][0] if ctx.terms else grads[0]).flatten()
        factor = (grad / total).unsqueeze(-1)
        # The target's own, p - 1, before rounding. Where that is small the target is the largest, whose 1 is exact.
        of_target = kept.gather(-1, index) * factor - (grad * here).unsqueeze(-1)
        if kept.dtype == factor.dtype or not kept.is_cpu:
            kept.mul_(factor)
        else:
            for part, scale in _some_rows(kept, factor):
                part.copy_(part.to(scale.dtype).mul_(scale))
        kept.scatter_(-1, index, of_target.to(kept.dtype))
        return kept.view(ctx.shape), None, None, None, None


def _less(narrow: Tensor, wide: Tensor) -> Tensor:
    """Return narrow - wide in the wide dtype. A GPU reads both in one kernel; a CPU is faster after a copy."""
    return narrow.to(wide.dtype).sub_(wide) if narrow.is_cpu else narrow - wide


def _some_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same rows of each tensor, BLOCK_ROWS at a time."""
    return zip(*(t.split(BLOCK_ROWS) for t in tensors), strict=True)


def split_cross_entropy(logits: Tensor, targets: Tensor, group: Group, vocabulary: int, terms: Terms = ()) -> Tensor:
    """Cross-entropy per token, in nats, of logits whose vocabulary is split over the group.

    logits [S, B, V], targets [S, B]; returns [S, B], the same on every rank. Rows from `vocabulary` on are
    padding: they enter neither the softmax nor the gradient. terms: what is added to the cross-entropy; with any,
    it returns [1 + terms, S, B], as `with_terms` does.
    """
    return _SplitCrossEntropy.apply(logits, targets, group, vocabulary, terms)
