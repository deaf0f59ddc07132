"""Faults of groups of parameters, and of updates that need whole matrices."""

from collections.abc import Sequence
from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.certify.layouts import ROTARY
from trivium.kernels.adamw import Amount
from trivium.optim.rule import Rule
from trivium.parallel.sharding import whole_matrices
from trivium.parallel.sharding.zero import ShardedOptimizer
from trivium.plan.layers.part import Parameter
from trivium.plan.matrices import Work
from trivium.plan.optimizer import Optimizer

Tensor = torch.Tensor

LLAMA = {**ROTARY, "kv_heads": 2, "head": "untied"}
NORMS = {"match": "*norm*", "lr_scale": 0.5}
GROUPS = {"groups": [NORMS, {"match": "layers.*.weight", "weight_decay": 0.3}]}
MUON = {"groups": [NORMS, {"match": "layers.*.weight", "rule": "muon"}]}
GROUPED = plan(model=LLAMA, optimizer=GROUPS)
CUT_BY_TENSOR = plan(tensor=2, model=LLAMA, optimizer=MUON)
CUT_BY_SLICES = plan(data=2, zero=1, model=LLAMA, optimizer=MUON)


@fault(whole_matrices, "_of_parts", CUT_BY_TENSOR)
def shards_by_themselves(original, mesh):
    """Each tensor rank's shard of a matrix is made orthogonal by itself."""

    def parts(work: Work, flat: Sequence[Tensor], rule: Rule) -> list[Tensor]:
        found = (rule.transform(part.view(work.shape).flatten(0, -2)) for part in flat)
        return [each.reshape(-1) for each in found]

    return parts


@fault(whole_matrices, "transformed", CUT_BY_TENSOR, CUT_BY_SLICES)
def fused_matrices_as_one(original, mesh):
    """Queries, keys and values, and gate and up, are made orthogonal together."""

    def transformed(parameter: Parameter, whole: Tensor, rule: Rule) -> Tensor:
        return rule.transform(whole.flatten(0, -2)).view(whole.shape)

    return transformed


@fault(ShardedOptimizer, "_direction", CUT_BY_SLICES)
def momentum_forgotten(original, mesh):
    """The momentum of matrices begins at zero in every step."""

    def direction(self: ShardedOptimizer, work: Work, where: slice, factor: Any) -> Tensor:
        for part in self.shards[work.bucket].parts:
            if "momentum" in part.states:
                part.states["momentum"].zero_()
        found: Tensor = original(self, work, where, factor)
        return found

    return direction


@fault(ShardedOptimizer, "_direction", CUT_BY_SLICES)
def directions_not_clipped(original, mesh):
    """The momentum of matrices takes gradients that are not clipped; the iteration hides it in a first step."""
    return lambda self, work, where, factor: original(self, work, where, 1.0)


@fault(Optimizer, "number_of", GROUPED)
def last_group_wins(original, mesh):
    """What no group takes is taken by the last that is given."""
    return lambda self, name: min(original(self, name), max(0, len(self.groups) - 1))


@fault(ShardedOptimizer, "_amount", GROUPED)
def rates_of_groups_forgotten(original, mesh):
    """All groups have the learning rate of the recipe."""

    def amount(self: ShardedOptimizer, group: int, lr: float) -> Amount:
        found: Amount = original(self, group, lr)
        return found._replace(lr=lr)

    return amount
