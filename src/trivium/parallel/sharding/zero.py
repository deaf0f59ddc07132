"""The optimizer. Its state is sharded over data ranks (ZeRO stages 1 to 3), or each rank holds all of it (stage 0).

A step: sum gradients to their owners, one norm for the whole model, update the owned slices in the
accumulation dtype, gather the weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from trivium.comms.collectives import sum_over_ranks_begin
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.kernels.adamw import SHARDS_PER_LAUNCH, Amount, Slice, State, compiled_update, fused, numbers_of
from trivium.kernels.crossing import read_later, sent
from trivium.kernels.host import Exchange
from trivium.objectives.objective import LOSS
from trivium.optim.rule import Rule
from trivium.optim.rules.adamw import AdamW
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.shard import Part, Shard, Updated, narrow, shard_of
from trivium.parallel.sharding.whole_matrices import WholeMatrices
from trivium.plan.buckets import UPDATE_ELEMENTS
from trivium.plan.matrices import Work
from trivium.plan.offload import PIECES_HERE
from trivium.plan.optimizer import ALL_BY_ADAMW, Optimizer

Tensor = torch.Tensor
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class AdamRule:
    """The constants of AdamW, by default those of MT-NLG, section 3.2. Weight decay and clip hold for every rule."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0  # largest norm of the gradient; 0 disables clipping

    @property
    def adamw(self) -> dict[str, float]:
        """Return the settings of the rule AdamW."""
        return {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}


class Totals(NamedTuple):
    """Numbers of the whole model and batch, the same on every rank.

    gradient_norm: before clipping. losses: by name. asked: how many ranks were asked to end. digest, loads: sums over
    all ranks.
    """

    gradient_norm: float
    losses: Mapping[str, float]
    asked: int = 0
    digest: tuple[int, ...] = ()
    loads: tuple[float, ...] = ()

    @property
    def loss(self) -> float:
        """The cross-entropy."""
        return self.losses[LOSS]


class ShardedOptimizer:
    """Updates all trained buckets of a rank, each group of parameters by its rule."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        mesh: Mesh,
        rule: AdamRule,
        masters: torch.dtype,
        *,
        groups: Optimizer = ALL_BY_ADAMW,
        work: Sequence[Sequence[Work]] = (),
        compiled: bool = False,
        on_host: int = 0,
    ) -> None:
        """masters: the dtype of master weights and states. work: the rounds in which ranks update whole matrices.
        compiled: AdamW runs in one pass over the state, which torch.compile makes. on_host: the number of buckets, the
        first ones, whose state the host keeps."""
        self.buckets, self.mesh, self.rule = list(buckets), mesh, rule
        self._groups, self._rules = groups.every, dict[AdamRule, tuple[Rule, ...]]()
        self.shards = [shard_of(b, masters, self.rules, is_on_host=n < on_host) for n, b in enumerate(buckets)]
        self._masters, at_once = masters, 0 if mesh.device.type == "cpu" else UPDATE_ELEMENTS
        self._together = together(self.shards, at_once)
        self._away, self._here = self.shards[:on_host], self.shards[on_host:]
        self._updated_together = together(self._here, at_once)
        self.exchange = Exchange(mesh.device, PIECES_HERE)
        self._work = work
        self._whole = WholeMatrices(self.buckets, mesh.tensor) if work else None
        self._one_pass = compiled_update() if compiled else None
        self._calls = self._planned_calls() if compiled else []
        self._numbers: dict[int, Tensor] = {}  # of the compiled update under way, by group
        self.steps_done = 0  # a checkpoint sets it, as it fills the states
        self.on_reduced: Callable[[int, Tensor], None] | None = None  # sees each shard's gradient before clipping
        # Sees the factor of the gradients right before an update.
        self.before_update: Callable[[Tensor | float], None] = lambda factor: None
        # Sees the loads of a step, summed over all ranks, after an update that was accepted.
        self.after_update: Callable[[Tensor], None] = lambda loads: None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rule of each group. Those of AdamW have the settings of `rule`, unless the group gives others."""
        if self.rule not in self._rules:
            given = {"adamw": self.rule.adamw}
            self._rules[self.rule] = tuple(group.made(given) for group in self._groups)
        return self._rules[self.rule]

    def _amount(self, group: int, lr: float) -> Amount:
        """Return learning rate, weight decay and step number of a group's next update."""
        own = self._groups[group]
        decay = self.rule.weight_decay if own.weight_decay is None else own.weight_decay
        return Amount(lr * own.lr_scale, decay, self.steps_done + 1)

    @torch.no_grad()
    def step(
        self,
        lr: float,
        *,
        losses: Mapping[str, Tensor],
        loss_scale: float = 1.0,
        asks: bool = False,
        digest: tuple[int, int] = (0, 0),
        loads: Tensor | None = None,
        accepts: Callable[[Totals], bool] | None = None,
    ) -> Totals:
        """Update the weights from the accumulated gradients and clear them.

        losses: this rank's shares of the batch's means. They and the gradients are multiplied by `loss_scale`.
        asks: this rank was asked to end. The sum over ranks tells all of them after the same step.
        digest: two whole numbers of this rank, which are summed too; the sums stay below 2^53. loads: more of them, in
        fp64, which `after_update` sees.
        accepts: sees the totals before the update and may refuse it. It must depend only on the totals and on what all
        ranks know, so that all ranks decide alike.
        With a loss scale, a norm that is not finite means that gradients overflowed: no rank updates anything.
        """
        if not 0 <= lr < math.inf:
            raise ConfigError(f"lr is {lr}, with which every weight would be lost; give a finite rate of 0 or more")
        for bucket in self.buckets:
            bucket.sum_copies()
        for number, shard in enumerate(self.shards):
            shard.grad = shard.bucket.reduced()
            if self.on_reduced is not None:
                self.on_reduced(number, shard.gradient() / loss_scale)
        shares = self._shares(list(losses.values()), loss_scale, (asks, *digest))
        if loads is not None:
            shares = torch.cat([shares, loads])
        sums, totals_of = sum_over_ranks_begin(shares, self.mesh), partial(_totals, tuple(losses))
        if self.rule.clip == 0 and loss_scale == 1.0 and accepts is None and loads is None:
            # without waiting: where the pipeline drains early, others are still at work
            self._update(lr, 1.0)
            return totals_of(sums.wait().tolist())
        found = sums.wait()
        told = read_later(found)
        if accepts is not None or loss_scale != 1.0:
            totals = totals_of(told())
            refused = accepts is not None and not accepts(totals)
            if refused or (loss_scale != 1.0 and not math.isfinite(totals.gradient_norm)):
                self._clear()
                return totals
        self._update(lr, self._factor(found[0], loss_scale))
        if loads is not None:
            self.after_update(found[-len(loads) :])
        return totals_of(told())

    def _factor(self, square: Tensor, loss_scale: float) -> Tensor | float:
        """Return the factor of the gradients. It stays on an accelerator, so that the host does not wait for it."""
        norm, clip = square.sqrt(), self.rule.clip
        factor = torch.where(norm > clip, clip / (norm + 1e-6), 1.0) if clip > 0 else torch.ones_like(norm)
        factor = factor / loss_scale
        return float(factor) if factor.device.type == "cpu" else factor

    def _update(self, lr: float, factor: Tensor | float) -> None:
        """Update all weights with `factor` times the gradients. A processor updates one bucket after the other, so that
        intermediate results stay in its cache. An accelerator updates many at once, in a few launches. Updated weights
        are sent while the next ones are computed."""
        self.before_update(factor)
        self._numbers.clear()
        if self._one_pass is not None and not isinstance(factor, Tensor):
            factor = torch.full((), factor, dtype=self._masters, device=self.mesh.device)
        self._update_away(lr, factor)
        if self._one_pass is None:
            for shards in self._in_order(self._updated_together):
                self._update_together(shards, lr, factor)
        else:
            self._update_in_one_pass(lr, factor)
        if self._whole is not None:
            self._update_matrices(self._whole, lr, factor)
        self.steps_done += 1
        self._clear()
        for shard in self.shards if not self._gathers_beside_forward else ():
            shard.bucket.published()

    @property
    def _gathers_beside_forward(self) -> bool:
        """Whether updated weights arrive during the next forward. A processor waits for them first: its cores send
        them, too, and doing both at once takes 1.5 % of a step longer (two ranks)."""
        return self.mesh.device.type != "cpu"

    def _in_order(self, buckets: Sequence[Entry]) -> Iterable[Entry]:
        """Return buckets, of which the first have the last layers, in the order of an update: it begins with the
        first layers where the next forward waits for their weights."""
        return reversed(buckets) if self._gathers_beside_forward else buckets

    def _planned_calls(self) -> list[Sequence[tuple[Shard, Part, Tensor]]]:
        """Return the calls of the compiled update. Where the weight decay of a part ends is a number on the device, as
        is everything that differs between calls."""
        found: list[Sequence[tuple[Shard, Part, Tensor]]] = []
        for group in range(len(self._groups)):
            own = [
                (shard, part, torch.full((), part.decayed, device=self.mesh.device))
                for shard in self._in_order(self._here)
                for part in shard.parts
                if part.group == group and not self._has_matrices(group)
            ]
            found += in_calls(own)
        return found

    def _update_in_one_pass(self, lr: float, factor: Tensor | float) -> None:
        for several in self._calls:
            shards, parts, decayed = zip(*several, strict=True)
            every = [shard.updated(part) for shard, part in zip(shards, parts, strict=True)]
            self._update_parts(every, lr, factor, decayed)
            for shard in shards if len(self._groups) == 1 else ():
                shard.bucket.publish()
        # With several groups, slices of different ranks have different parts, but all ranks must publish in one order.
        for shard in self._in_order(self._here) if len(self._groups) > 1 else ():
            if not self._waits(shard):
                shard.bucket.publish()

    def _update_together(self, shards: Sequence[Shard], lr: float, factor: Tensor | float) -> None:
        """Update some shards at once. Its temporary memory is free when it returns."""
        for group in range(len(self._groups)):
            every = [shard.updated(part) for shard in shards for part in shard.parts if part.group == group]
            if every and not self._has_matrices(group):
                self._update_parts(every, lr, factor)
        for shard in shards:
            if not self._waits(shard):
                shard.bucket.publish()

    def _update_away(self, lr: float, factor: Tensor | float) -> None:
        """Update the shards whose state the host keeps, on the device, to which a piece at a time is brought."""
        pieces = {
            number: [
                shard.updated(piece)
                for part in shard.parts
                if not self._has_matrices(part.group)
                for piece in part.pieces()
            ]
            for number, shard in enumerate(self._away)
        }
        arriving = self.exchange.through([each.kept_away for of_shard in pieces.values() for each in of_shard])
        for number, shard in enumerate(self._away):
            for each in pieces[number]:
                decayed = torch.full((), each.decayed, device=self.mesh.device)
                self._update_parts([each.brought(next(arriving))], lr, factor, [decayed])
            if not self._waits(shard):
                shard.bucket.publish()
        next(arriving, None)  # the last piece returns

    def _has_matrices(self, group: int) -> bool:
        return self.rules[group].unit == "matrix"

    def _waits(self, shard: Shard) -> bool:
        """Whether a part of the bucket, on any rank, is updated only after the exchange of matrices."""
        return any(self._has_matrices(span.group) for span in shard.bucket.spans)

    def _update_matrices(self, whole: WholeMatrices, lr: float, factor: Tensor | float) -> None:
        """Update the parameters whose rules need whole matrices: compute directions here, exchange them for updates,
        and apply these here."""
        for works in self._work:
            directions = [self._direction(work, whole.own(work), factor) for work in works]
            for work, update in zip(works, whole.updates(works, directions, self.rules), strict=True):
                amount = self._amount(work.group, lr)
                shard = self.shards[work.bucket]
                master = {"master": shard.master[whole.own(work)]}
                for here in self._brought(master, from_host=shard.is_on_host and shard.copy is not None):
                    if work.parameter.decay and amount.weight_decay:
                        here["master"].mul_(1 - amount.lr * amount.weight_decay)
                    here["master"].sub_(update, alpha=amount.lr)
        for shard in self._in_order(self.shards):
            if self._waits(shard):
                narrow([shard.updated(part) for part in shard.parts if self._has_matrices(part.group)])
                shard.bucket.publish()

    def _direction(self, work: Work, where: slice, factor: Tensor | float) -> Tensor:
        """Return the direction of this rank's elements of a parameter; it may be empty."""
        shard = self.shards[work.bucket]
        gradient = shard.summed()[where].to(self._masters)
        if where.start == where.stop:
            return gradient
        states = shard.tensors(where.start, where.stop - where.start)
        del states["master"]
        found = gradient = gradient * factor if isinstance(factor, Tensor) or factor != 1.0 else gradient
        for here in self._brought(states, from_host=shard.is_on_host):
            found = self.rules[work.group].direction(gradient, here, self.steps_done + 1)
        return found

    def _brought(self, tensors: Mapping[str, Tensor], *, from_host: bool) -> Iterator[Mapping[str, Tensor]]:
        """Yield the tensors on the device, once; those from the host return there afterwards."""
        if not from_host:
            yield tensors
            return
        for here in self.exchange.through([list(tensors.values())]):
            yield dict(zip(tensors, here, strict=True))

    def _update_parts(
        self, every: Sequence[Updated], lr: float, factor: Tensor | float, decayed: Sequence[Tensor] = ()
    ) -> None:
        """Update what belongs to one group. decayed: how many elements of each have weight decay, on the device; a
        compiled update reads it there."""
        group = every[0].group
        rule, amount = self.rules[group], self._amount(group, lr)
        if self._one_pass is not None and isinstance(rule, AdamW):
            if group not in self._numbers:
                self._numbers[group] = sent(np.array(numbers_of(rule, amount)), self.mesh.device, self._masters)
            states = [State(each.master, each.states["moment1"], each.states["moment2"], each.copy) for each in every]
            self._one_pass(states, [each.gradient for each in every], factor, self._numbers[group], decayed)
            return
        grads, divisor = scaled([each.gradient for each in every], factor, self._masters)
        slices = [Slice(each.master, each.states, grad, each.decayed) for each, grad in zip(every, grads, strict=True)]
        if isinstance(rule, AdamW):
            fused(rule, slices, amount, divisor)
        else:
            by_rule(rule, slices, amount, divisor)
        narrow(every)

    def _clear(self) -> None:
        for shard in self.shards:
            shard.bucket.clear_gradients()
            shard.grad = None

    def _shares(self, losses: Sequence[Tensor], scale: float, beside: tuple[int, int, int]) -> Tensor:
        """Return what this rank adds to the squared norm of the model's gradient, each parameter counted once, to the
        numbers that go along, and to the losses; [square, beside, losses]. scale: of losses and gradients."""
        square = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for shards in self._together:
            ours = [s for s in shards if s.bucket.holders.index == 0]  # only one rank of each replicate group counts
            parts = [s.summed()[where] for s in ours for where in s.counted]
            at_once = len(shards) > 1 or self.mesh.device.type != "cpu"
            square += squares(parts, self._masters, at_once=at_once)
        along = sent(np.array(beside), self.mesh.device, torch.float64)
        shares = torch.stack([loss_share(loss, self.mesh) / scale for loss in losses])
        return torch.cat([(square / scale**2).view(1), along, shares])

    @torch.no_grad()
    def restart_masters(self) -> None:
        """Take the masters from the weights (when a checkpoint brought weights alone)."""
        for shard in self.shards:
            shard.master.copy_(shard.bucket.shard)


def in_calls(shards: Sequence[Entry]) -> list[Sequence[Entry]]:
    """Several for each call of the update in one pass, then those that are left one by one: it is compiled twice."""
    whole = len(shards) - len(shards) % SHARDS_PER_LAUNCH
    several = [shards[start : start + SHARDS_PER_LAUNCH] for start in range(0, whole, SHARDS_PER_LAUNCH)]
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


def scaled(given: list[Tensor], factor: Tensor | float, masters: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
    """Return gradients in the dtype of the masters, times `factor`; with a divisor, by which the update is to divide
    them on its way instead, where they are fp32. Those of the dtype already are changed in place."""
    if not isinstance(factor, Tensor):
        grads = [grad.to(masters) for grad in given]
        if factor == 1.0:
            return grads, None
        if masters == torch.float32:
            return grads, torch.full((), factor, device=grads[0].device).reciprocal_()
        torch._foreach_mul_(grads, factor)
        return grads, None
    factor = factor.to(masters)
    if given[0].dtype != masters:
        # A factor with a dimension of its own widens what it multiplies: one pass over memory instead of two.
        return [grad * factor.view(1) for grad in given], None
    torch._foreach_mul_(given, factor)
    return given, None


def by_rule(rule: Rule, slices: Sequence[Slice], amount: Amount, divisor: Tensor | None) -> None:
    """Update slices by the directions of a rule whose unit is an element."""
    for master, states, gradient, decayed in slices:
        if divisor is not None:
            gradient = gradient / divisor
        direction = rule.direction(gradient, states, amount.step)
        if amount.weight_decay:
            master[:decayed].mul_(1 - amount.lr * amount.weight_decay)
        master.sub_(direction, alpha=amount.lr)


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


def _totals(names: Sequence[str], sums: Sequence[float]) -> Totals:
    square, asked, high, low, *rest = sums
    losses, loads = dict(zip(names, rest[: len(names)], strict=True)), tuple(rest[len(names) :])
    return Totals(math.sqrt(square), losses, round(asked), (round(high), round(low)), loads)
