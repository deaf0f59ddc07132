"""AdamW whose state is sharded over data ranks (ZeRO stages 1 to 3), or held whole by each (stage 0).

A step: sum gradients to their owners, one norm for the whole model, update the owned slices in the
accumulation dtype, gather the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.optim.adamw import adamw

from trivium.parallel.buckets import Bucket
from trivium.parallel.collectives import PendingResult, sum_over_ranks_begin
from trivium.parallel.mesh import Mesh

Tensor = torch.Tensor


@dataclass(frozen=True)
class AdamRule:
    """AdamW's constants (MT-NLG section 3.2: 0.9, 0.95, 1e-8, decay 0.1)."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0  # largest norm of the gradient; 0: never clipped


class Part(NamedTuple):
    """Elements `where` of a shard, which weight decay falls on or not."""

    where: slice
    decays: bool


@dataclass(eq=False)
class Shard:
    """What this rank keeps of one bucket: master weights, moments and, in a step, the gradient of its owned slice, in
    the dtype in which it was summed.

    parts: those with weight decay and without.
    """

    bucket: Bucket
    master: Tensor
    moment1: Tensor
    moment2: Tensor
    parts: tuple[Part, ...]
    norm_weight: Tensor | None  # 1 where an element counts in the norm, else 0; None: all count
    grad: Tensor | None = None

    def gradient(self) -> Tensor:
        """In the dtype of the masters: a copy where that is another."""
        assert self.grad is not None, "gradients are reduced first"
        return self.grad.to(self.master.dtype)


class Totals(NamedTuple):
    """Of the whole model and batch, the same on every rank.

    gradient_norm: before clipping. asked: by how many ranks. digest: the sums of what the ranks brought.
    """

    gradient_norm: float
    loss: float
    asked: int = 0
    digest: tuple[int, ...] = ()


class ShardedAdamW:
    """One optimizer over all buckets of a rank; `state` tensors are named in `states()` for checkpoints."""

    def __init__(self, buckets: Sequence[Bucket], mesh: Mesh, rule: AdamRule, masters: torch.dtype) -> None:
        self.buckets, self.mesh, self.rule = list(buckets), mesh, rule
        self.shards = [_shard(b, masters) for b in buckets]
        self.steps_done = 0  # a checkpoint sets it, as it fills the states
        self.on_reduced: Callable[[int, Tensor], None] | None = (
            None  # sees each shard's gradient before clipping
        )

    @torch.no_grad()
    def step(
        self,
        lr: float,
        *,
        loss: Tensor,
        loss_scale: float = 1.0,
        asks: bool = False,
        digest: tuple[int, int] = (0, 0),
        accepts: Callable[[Totals], bool] | None = None,
    ) -> Totals:
        """Update the weights from the accumulated gradients and clear them.

        loss: this rank's share of the batch's mean loss. It and the gradients are of the loss times `loss_scale`.
        asks: this rank was asked to end; carried along, so that all ranks learn of it after the same step.
        digest: two whole numbers of this rank, also carried along; their sums over all ranks stay below 2^53.
        accepts: sees the totals before anything is updated; where it says no, nothing is. It must be a function of
        the totals and of what all ranks know, so that all say the same.
        With a scale, a norm that is not finite means that they overflowed: nothing is updated, on any rank alike.
        """
        for number, shard in enumerate(self.shards):
            shard.grad = shard.bucket.reduced()
            if self.on_reduced is not None:
                self.on_reduced(number, shard.gradient() / loss_scale)
        sums = sum_over_ranks_begin(self._shares(loss, loss_scale, (asks, *digest)), self.mesh)
        if self.rule.clip == 0 and loss_scale == 1.0 and accepts is None:
            self._update(lr)  # without waiting: where the pipeline drains early, others are still at work
            return _totals(sums)
        totals = _totals(sums)
        refused = accepts is not None and not accepts(totals)
        if refused or (loss_scale != 1.0 and not math.isfinite(totals.gradient_norm)):
            self._clear()
            return totals
        clipped = 0 < self.rule.clip < totals.gradient_norm
        factor = self.rule.clip / (totals.gradient_norm + 1e-6) if clipped else 1.0
        self._update(lr, factor / loss_scale)
        return totals

    def _update(self, lr: float, factor: float = 1.0) -> None:
        """AdamW with `factor` times the gradients, one bucket after the other: what is computed on the way is then
        still in a cache when it is used, and weights travel while the next are updated."""
        for shard in self.shards:
            grad = shard.gradient()
            if factor != 1.0:
                grad.mul_(factor)
            for part in shard.parts:
                self._adamw(shard, grad, part, lr)
            weights = shard.bucket.shard
            if weights.data_ptr() != shard.master.data_ptr():
                weights.copy_(shard.master)
            shard.bucket.publish()
        self.steps_done += 1
        self._clear()
        for shard in self.shards:
            shard.bucket.published()

    def _adamw(self, shard: Shard, grad: Tensor, part: Part, lr: float) -> None:
        where = part.where
        adamw(
            [shard.master[where]],
            [grad[where]],
            [shard.moment1[where]],
            [shard.moment2[where]],
            [],
            [torch.full((), float(self.steps_done), device=grad.device)],  # which it counts up
            fused=True,
            amsgrad=False,
            beta1=self.rule.beta1,
            beta2=self.rule.beta2,
            lr=lr,
            weight_decay=self.rule.weight_decay if part.decays else 0.0,
            eps=self.rule.epsilon,
            maximize=False,
        )

    def _clear(self) -> None:
        for shard in self.shards:
            shard.bucket.clear_gradients()
            shard.grad = None

    def _shares(self, loss: Tensor, scale: float, beside: tuple[int, int, int]) -> Tensor:
        """What this rank adds to the squared norm of the model's gradient, each parameter counted once, to the loss,
        and to the numbers that go along; [5]. scale: of the loss and the gradients."""
        square = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for shard in self.shards:
            if shard.bucket.sharded or self.mesh.replicas.index == 0:  # replicas of the whole count once
                grad = shard.gradient()
                weighted = grad if shard.norm_weight is None else grad * shard.norm_weight
                square += torch.dot(weighted, grad).to(torch.float64)
        along = torch.tensor(beside, dtype=torch.float64, device=self.mesh.device)
        both = torch.stack([square / scale**2, loss_share(loss, self.mesh) / scale])
        return torch.cat([both, along])

    def states(self, shard: Shard) -> dict[str, Tensor]:
        """The tensors of a shard by kind, each as long as the bucket's owned slice."""
        return {"master": shard.master, "moment1": shard.moment1, "moment2": shard.moment2}

    @torch.no_grad()
    def restart_masters(self) -> None:
        """Take the masters from the weights (when a checkpoint brought weights alone)."""
        for shard in self.shards:
            shard.master.copy_(shard.bucket.shard)


def loss_share(loss: Tensor, mesh: Mesh) -> Tensor:
    """A rank's loss as it enters the sum over all ranks: tensor ranks all know it, and count once."""
    return loss if mesh.tensor.index == 0 else torch.zeros_like(loss)


def _totals(sums: PendingResult) -> Totals:
    square, loss, *along = sums.wait().tolist()
    asked, *digest = (round(n) for n in along)
    return Totals(math.sqrt(square), loss, asked, tuple(digest))


def _shard(bucket: Bucket, masters: torch.dtype) -> Shard:
    # Where weights are already in the masters' dtype they are their own masters.
    master = bucket.shard if bucket.shard.dtype == masters else bucket.shard.to(masters)
    border = min(max(bucket.decayed - bucket.owned.start, 0), len(master))
    halves = (Part(slice(0, border), decays=True), Part(slice(border, len(master)), decays=False))
    parts = tuple(part for part in halves if part.where.stop > part.where.start)
    moments = torch.zeros_like(master), torch.zeros_like(master)
    return Shard(bucket, master, *moments, parts, _norm_weight(bucket, masters))


def _norm_weight(bucket: Bucket, masters: torch.dtype) -> Tensor | None:
    if all(s.counts for s in bucket.slots):
        return None  # padding has no gradient
    weight = torch.zeros(bucket.padded, dtype=masters, device=bucket.weights.device)
    for slot in bucket.slots:
        weight[slot.start : slot.stop] = float(slot.counts)
    return weight[bucket.owned].clone()
