"""AdamW whose state is sharded over data ranks (ZeRO stages 1 to 3), or held whole by each (stage 0).

A step: sum gradients to their owners, one norm for the whole model, update the owned slices in the
accumulation dtype, gather the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from trivium.parallel.buckets import Bucket
from trivium.parallel.collectives import all_reduce_
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


@dataclass(eq=False)
class Shard:
    """What this rank keeps of one bucket: master weights and moments of its owned slice."""

    bucket: Bucket
    master: torch.nn.Parameter
    norm_weight: Tensor | None  # 1 where an element counts in the norm, else 0; None: all count


class ShardedAdamW:
    """One optimizer over all buckets of a rank; `state` tensors are named in `states()` for checkpoints."""

    def __init__(self, buckets: Sequence[Bucket], mesh: Mesh, rule: AdamRule, masters: torch.dtype) -> None:
        self.buckets, self.mesh, self.rule = list(buckets), mesh, rule
        self.shards = [_shard(b, masters) for b in buckets]
        self.steps_done = 0
        self.on_reduced: Callable[[int, Tensor], None] | None = (
            None  # sees each shard's gradient before clipping
        )
        kinds = ((True, rule.weight_decay), (False, 0.0))
        groups = [
            {
                "params": [s.master for s in self.shards if s.bucket.decay is decay],
                "weight_decay": weight_decay,
            }
            for decay, weight_decay in kinds
        ]
        # A rank whose stages hold no layers has nothing to update; torch refuses an optimizer of nothing.
        nothing = [{"params": [torch.nn.Parameter(torch.zeros(0, device=mesh.device))], "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [g for g in groups if g["params"]] or nothing,
            lr=0.0,
            betas=(rule.beta1, rule.beta2),
            eps=rule.epsilon,
            fused=True,
        )
        for shard in self.shards:
            self._adam.state[shard.master] = {
                "step": torch.tensor(0.0, dtype=torch.float32),
                "exp_avg": torch.zeros_like(shard.master),
                "exp_avg_sq": torch.zeros_like(shard.master),
            }

    @torch.no_grad()
    def step(self, lr: float, *, loss_scale: float = 1.0) -> float:
        """Update the weights from the accumulated gradients and clear them; returns the norm before clipping.

        Gradients are of the loss times `loss_scale`. With a scale, a norm that is not finite means that they
        overflowed: nothing is updated, on any rank alike.
        """
        for number, shard in enumerate(self.shards):
            shard.master.grad = shard.bucket.reduced().to(shard.master.dtype)
            if loss_scale != 1.0:
                shard.master.grad.mul_(1 / loss_scale)
            if self.on_reduced is not None:
                self.on_reduced(number, shard.master.grad)
        norm = self.gradient_norm()
        if loss_scale != 1.0 and not math.isfinite(norm):
            self._clear()
            return norm
        if 0 < self.rule.clip < norm:
            for shard in self.shards:
                assert shard.master.grad is not None, "reduced just above"
                shard.master.grad.mul_(self.rule.clip / (norm + 1e-6))
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self.steps_done += 1
        for shard in self.shards:
            weights = shard.bucket.shard
            if weights.data_ptr() != shard.master.data_ptr():
                weights.copy_(shard.master)
            shard.bucket.publish()
        self._clear()
        for shard in self.shards:
            shard.bucket.published()
        return norm

    def _clear(self) -> None:
        for shard in self.shards:
            shard.bucket.clear_gradients()
            shard.master.grad = None

    def gradient_norm(self) -> float:
        """The 2-norm of the model's gradient, each parameter counted once, the same on every rank."""
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for shard in self.shards:
            grad = shard.master.grad
            assert grad is not None, "the norm is of reduced gradients"
            weighted = grad if shard.norm_weight is None else grad * shard.norm_weight
            total += torch.dot(weighted, grad).to(torch.float64)
        if any(s.bucket.sharded for s in self.shards):
            all_reduce_(total, self.mesh.replicas)
        all_reduce_(total, self.mesh.tensor)
        all_reduce_(total, self.mesh.pipeline)
        return float(total.sqrt())

    def states(self, shard: Shard) -> dict[str, Tensor]:
        """The tensors of a shard by kind, each as long as the bucket's owned slice."""
        state = self._adam.state[shard.master]
        return {"master": shard.master.data, "moment1": state["exp_avg"], "moment2": state["exp_avg_sq"]}

    def restore(self, steps_done: int) -> None:
        """After the states were filled from a checkpoint: continue from this step, weights from the masters."""
        self.steps_done = steps_done
        with torch.no_grad():
            for shard in self.shards:
                self._adam.state[shard.master]["step"].fill_(float(steps_done))

    @torch.no_grad()
    def restart_masters(self) -> None:
        """Take the masters from the weights (when a checkpoint brought weights alone)."""
        for shard in self.shards:
            shard.master.copy_(shard.bucket.shard)


def _shard(bucket: Bucket, masters: torch.dtype) -> Shard:
    # Where weights are already in the masters' dtype they are their own masters.
    same = bucket.shard.dtype == masters
    master = torch.nn.Parameter(bucket.shard if same else bucket.shard.to(masters))
    return Shard(bucket, master, _norm_weight(bucket))


def _norm_weight(bucket: Bucket) -> Tensor | None:
    if all(s.counts for s in bucket.slots):
        return None  # padding has no gradient
    weight = bucket.gradients.new_zeros(bucket.padded)
    for slot in bucket.slots:
        weight[slot.start : slot.stop] = float(slot.counts)
    return weight[bucket.owned].clone()
