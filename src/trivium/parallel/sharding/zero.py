"""AdamW whose state is sharded over data ranks (ZeRO stages 1 to 3), or held whole by each (stage 0).

A step: sum gradients to their owners, one norm for the whole model, update the owned slices in the
accumulation dtype, gather the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch.optim.adamw import adamw

from trivium.comms.collectives import sum_over_ranks_begin
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.kernels.crossing import read_later, sent
from trivium.kernels.one_pass import TOGETHER, Numbers, OnePass, State, compiled_update
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.buckets import UPDATED_AT_ONCE

Tensor = torch.Tensor
Entry = TypeVar("Entry")
BROUGHT = (
    5  # numbers that each rank adds to in a step, besides a z-loss: square, loss, asked, and two of a digest
)


@dataclass(frozen=True)
class AdamRule:
    """AdamW's constants (MT-NLG section 3.2: 0.9, 0.95, 1e-8, decay 0.1)."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0  # largest norm of the gradient; 0: never clipped


@dataclass(eq=False)
class Shard:
    """What this rank keeps of one bucket: master weights, moments and, in a step, the gradient of its owned slice, in
    the dtype in which it was summed.

    decayed: so many elements from the first on have weight decay.
    """

    bucket: Bucket
    master: Tensor
    moment1: Tensor
    moment2: Tensor
    decayed: int
    counted: tuple[slice, ...]  # the elements that count in the norm
    grad: Tensor | None = None

    def summed(self) -> Tensor:
        """The gradient as it was summed."""
        assert self.grad is not None, "gradients are reduced first"
        return self.grad

    @property
    def copy(self) -> Tensor | None:
        """The weights, where they are a copy of the masters in a narrower dtype."""
        own = self.bucket.shard.data_ptr() != self.master.data_ptr()
        return self.bucket.shard if own else None

    def part(self, *, decays: bool) -> slice:
        """The elements that have weight decay, or those that have not."""
        return slice(0, self.decayed) if decays else slice(self.decayed, len(self.master))

    def gradient(self) -> Tensor:
        """In the dtype of the masters: a copy where that is another."""
        return self.summed().to(self.master.dtype)


class Totals(NamedTuple):
    """Of the whole model and batch, the same on every rank.

    gradient_norm: before clipping. asked: by how many ranks. digest: the sums of what the ranks brought.
    z_loss: where there is one.
    """

    gradient_norm: float
    loss: float
    asked: int = 0
    digest: tuple[int, ...] = ()
    z_loss: float | None = None


class ShardedAdamW:
    """One optimizer over all buckets of a rank; `state` tensors are named in `states()` for checkpoints."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        mesh: Mesh,
        rule: AdamRule,
        masters: torch.dtype,
        *,
        compiled: bool = False,
    ) -> None:
        """masters: the dtype of the state. compiled: the update in one pass over it, by torch.compile."""
        self.buckets, self.mesh, self.rule = list(buckets), mesh, rule
        self.shards, self._masters = [_shard(b, masters) for b in buckets], masters
        self._together = together(self.shards, 0 if mesh.device.type == "cpu" else UPDATED_AT_ONCE)
        # A launch for each shard. Where its weight decay ends is a number on the device, as all that changes is.
        self._one_pass = compiled_update() if compiled else None
        ends = [torch.full((), shard.decayed, device=mesh.device) for shard in self.shards]
        self._calls = in_calls(list(zip(self.shards, ends, strict=True)))
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
        z_loss: Tensor | None = None,
        loss_scale: float = 1.0,
        asks: bool = False,
        digest: tuple[int, int] = (0, 0),
        accepts: Callable[[Totals], bool] | None = None,
    ) -> Totals:
        """Update the weights from the accumulated gradients and clear them.

        loss: this rank's share of the batch's mean loss; z_loss: of what is told beside it. They and the gradients are
        times `loss_scale`.
        asks: this rank was asked to end; carried along, so that all ranks learn of it after the same step.
        digest: two whole numbers of this rank, also carried along; their sums over all ranks stay below 2^53.
        accepts: sees the totals before anything is updated; where it says no, nothing is. It must be a function of
        the totals and of what all ranks know, so that all say the same.
        With a scale, a norm that is not finite means that they overflowed: nothing is updated, on any rank alike.
        """
        if not 0 <= lr < math.inf:
            raise ConfigError(
                f"lr is {lr}, with which every weight would be lost; give a finite rate of 0 or more"
            )
        for bucket in self.buckets:
            bucket.sum_copies()
        for number, shard in enumerate(self.shards):
            shard.grad = shard.bucket.reduced()
            if self.on_reduced is not None:
                self.on_reduced(number, shard.gradient() / loss_scale)
        losses = (loss,) if z_loss is None else (loss, z_loss)
        sums = sum_over_ranks_begin(self._shares(losses, loss_scale, (asks, *digest)), self.mesh)
        if self.rule.clip == 0 and loss_scale == 1.0 and accepts is None:
            # without waiting: where the pipeline drains early, others are still at work
            self._update(lr, 1.0)
            return _totals(sums.wait().tolist())
        found = sums.wait()
        told = read_later(found)
        if accepts is not None or loss_scale != 1.0:
            totals = _totals(told())
            refused = accepts is not None and not accepts(totals)
            if refused or (loss_scale != 1.0 and not math.isfinite(totals.gradient_norm)):
                self._clear()
                return totals
        self._update(lr, self._factor(found[0], loss_scale))
        return _totals(told())

    def _factor(self, square: Tensor, loss_scale: float) -> Tensor | float:
        """What gradients are multiplied by. On an accelerator it stays there, so that nobody waits for it."""
        norm, clip = square.sqrt(), self.rule.clip
        factor = torch.where(norm > clip, clip / (norm + 1e-6), 1.0) if clip > 0 else torch.ones_like(norm)
        factor = factor / loss_scale
        return float(factor) if factor.device.type == "cpu" else factor

    def _update(self, lr: float, factor: Tensor | float) -> None:
        """AdamW with `factor` times the gradients. On a processor one bucket after the other: what is computed on the
        way is then still in a cache when it is used. On an accelerator many at once, in a few launches. Weights travel
        while the next are updated."""
        if self._one_pass is None:
            for shards in self._together:
                self._update_together(shards, lr, factor)
        else:
            self._update_in_one_pass(self._one_pass, lr, factor)
        self.steps_done += 1
        self._clear()
        for shard in self.shards:
            shard.bucket.published()

    def _update_in_one_pass(self, update: OnePass, lr: float, factor: Tensor | float) -> None:
        device, masters = self.mesh.device, self._masters
        if not isinstance(factor, Tensor):
            factor = torch.full((), factor, dtype=masters, device=device)
        numbers = sent(np.array(adam_numbers(self.rule, self.steps_done + 1, lr)), device, masters)
        for several in self._calls:
            shards, decayed = zip(*several, strict=True)
            states = [State(s.master, s.moment1, s.moment2, s.copy) for s in shards]
            update(states, [s.summed() for s in shards], factor, numbers, decayed)
            for shard in shards:
                shard.bucket.publish()

    def _update_together(self, shards: Sequence[Shard], lr: float, factor: Tensor | float) -> None:
        """Of one group; what it took is free when this returns."""
        grads, divisor = scaled(shards, factor)
        for decays in (True, False):
            self._adamw(shards, grads, divisor, lr, decays=decays)
        copies = [(s.copy, s.master) for s in shards if s.copy is not None]
        if copies:
            torch._foreach_copy_([copy for copy, _ in copies], [master for _, master in copies])
        for shard in shards:
            shard.bucket.publish()

    def _adamw(
        self,
        shards: Sequence[Shard],
        grads: Sequence[Tensor],
        divisor: Tensor | None,
        lr: float,
        *,
        decays: bool,
    ) -> None:
        """Of the parts with weight decay, or of those without."""
        both = ((s, g, s.part(decays=decays)) for s, g in zip(shards, grads, strict=True))
        parts = [(shard, grad, where) for shard, grad, where in both if where.stop > where.start]
        if not parts:
            return
        counts = torch.full((len(parts),), float(self.steps_done), device=self.mesh.device)
        adamw(
            [shard.master[where] for shard, _, where in parts],
            [grad[where] for _, grad, where in parts],
            [shard.moment1[where] for shard, _, where in parts],
            [shard.moment2[where] for shard, _, where in parts],
            [],
            list(counts.unbind()),  # which it counts up
            fused=True,
            grad_scale=divisor,
            amsgrad=False,
            beta1=self.rule.beta1,
            beta2=self.rule.beta2,
            lr=lr,
            weight_decay=self.rule.weight_decay if decays else 0.0,
            eps=self.rule.epsilon,
            maximize=False,
        )

    def _clear(self) -> None:
        for shard in self.shards:
            shard.bucket.clear_gradients()
            shard.grad = None

    def _shares(self, losses: Sequence[Tensor], scale: float, beside: tuple[int, int, int]) -> Tensor:
        """What this rank adds to the squared norm of the model's gradient, each parameter counted once, to the losses,
        and to the numbers that go along; [square, loss, beside, z-loss where there is one]. scale: of losses and
        gradients."""
        square = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for shards in self._together:
            ours = [s for s in shards if s.bucket.holders.index == 0]  # of holders one counts
            parts = [s.summed()[where] for s in ours for where in s.counted]
            at_once = len(shards) > 1 or self.mesh.device.type != "cpu"
            square += squares(parts, self._masters, at_once=at_once)
        along = sent(np.array(beside), self.mesh.device, torch.float64)
        loss, *z_loss = (loss_share(loss, self.mesh) / scale for loss in losses)
        return torch.cat([torch.stack([square / scale**2, loss]), along, *(z.view(1) for z in z_loss)])

    def states(self, shard: Shard) -> dict[str, Tensor]:
        """The tensors of a shard by kind, each as long as the bucket's owned slice."""
        return {"master": shard.master, "moment1": shard.moment1, "moment2": shard.moment2}

    @torch.no_grad()
    def restart_masters(self) -> None:
        """Take the masters from the weights (when a checkpoint brought weights alone)."""
        for shard in self.shards:
            shard.master.copy_(shard.bucket.shard)


def adam_numbers(rule: AdamRule, step: int, lr: float) -> Numbers:
    """Of a step, counted from 1."""
    return Numbers(
        decay=lr * rule.weight_decay,
        towards1=1 - rule.beta1,
        stays2=rule.beta2,
        towards2=1 - rule.beta2,
        rate=lr / (1 - rule.beta1**step),
        root=(1 - rule.beta2**step) ** -0.5,
        epsilon=rule.epsilon,
    )


def in_calls(shards: Sequence[Entry]) -> list[Sequence[Entry]]:
    """Several for each call of the update in one pass, then those that are left one by one: it is compiled twice."""
    whole = len(shards) - len(shards) % TOGETHER
    several = [shards[start : start + TOGETHER] for start in range(0, whole, TOGETHER)]
    return [*several, *([shard] for shard in shards[whole:])]


def together(shards: Sequence[Shard], at_once: int) -> list[list[Shard]]:
    """Shards that are updated at once, in order: until they have `at_once` elements."""
    groups: list[list[Shard]] = []
    room = 0
    for shard in shards:
        if room <= 0:
            groups.append([])
            room = at_once
        groups[-1].append(shard)
        room -= len(shard.master)
    return groups


def scaled(shards: Sequence[Shard], factor: Tensor | float) -> tuple[list[Tensor], Tensor | None]:
    """Their gradients in the dtype of the masters, times `factor`; with a divisor, by which the update is
    to divide them on its way instead: it knows one only in fp32. Those of that dtype already are changed in place."""
    if not isinstance(factor, Tensor):
        grads = [shard.gradient() for shard in shards]
        if factor == 1.0:
            return grads, None
        if grads[0].dtype == torch.float32:
            return grads, torch.full((), factor, device=grads[0].device).reciprocal_()
        torch._foreach_mul_(grads, factor)
        return grads, None
    given, factor = [shard.summed() for shard in shards], factor.to(shards[0].master.dtype)
    if given[0].dtype != factor.dtype:
        # A factor with a dimension of its own widens what it multiplies: one pass over memory instead of two.
        return [grad * factor.view(1) for grad in given], None
    torch._foreach_mul_(given, factor)
    return given, None


def squares(gradients: Sequence[Tensor], dtype: torch.dtype, *, at_once: bool) -> Tensor | float:
    """Sum of the squares of all elements, added up in `dtype`. at_once: in a few launches, as an accelerator should,
    which read narrow gradients as they are."""
    if at_once and gradients:
        return torch.stack(torch._foreach_norm(list(gradients), 2, dtype=dtype)).double().square().sum()
    wide = (g.to(dtype) for g in gradients)
    return sum(torch.dot(g, g).to(torch.float64) for g in wide)


def loss_share(loss: Tensor, mesh: Mesh) -> Tensor:
    """A rank's loss as it enters the sum over all ranks: tensor ranks all know it, and count once."""
    return loss if mesh.tensor.index == 0 else torch.zeros_like(loss)


def _totals(sums: Sequence[float]) -> Totals:
    square, loss, asked, *digest = sums[:BROUGHT]
    z_loss = sums[BROUGHT] if len(sums) > BROUGHT else None
    return Totals(math.sqrt(square), loss, round(asked), tuple(map(round, digest)), z_loss)


def _shard(bucket: Bucket, masters: torch.dtype) -> Shard:
    # Where weights are already in the masters' dtype they are their own masters.
    master = bucket.shard if bucket.shard.dtype == masters else bucket.shard.to(masters)
    decayed = min(max(bucket.decayed - bucket.owned.start, 0), len(master))
    moments = torch.zeros_like(master), torch.zeros_like(master)
    return Shard(bucket, master, *moments, decayed, _counted(bucket))


def _counted(bucket: Bucket) -> tuple[slice, ...]:
    """Of this rank's slice; what follows one another as one."""
    found: list[slice] = []
    first, size = bucket.owned.start, len(bucket.shard)
    for slot in bucket.slots:
        start, stop = max(0, slot.start - first), min(size, slot.stop - first)
        if not slot.counts or start >= stop:
            continue
        if found and found[-1].stop == start:
            start = found.pop().start
        found.append(slice(start, stop))
    return tuple(found)
