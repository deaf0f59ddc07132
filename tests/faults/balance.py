"""Faults of the losses of routers, and of biases that follow loads."""

from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.model import loads
from trivium.model.loads import Router
from trivium.parallel.sharding.buckets import Bucket
from trivium.training import routers
from trivium.training.routers import Routers

Tensor = torch.Tensor

LAYERS = {"norm": "rms_norm", "feed_forward": "experts", "bias": "none", "positions": "rotary", "layers": 2}


def balanced(*, model: dict[str, Any] | None = None, **experts: Any) -> dict[str, Any]:
    """A model whose routers have a balance loss."""
    own = {"count": 4, "chosen": 2, "columns": 8, "balance_loss": 0.1, **experts}
    return {**LAYERS, "experts": own, **(model or {})}


MEGATRON = balanced()
BIASED = balanced(bias_rate=0.05)
POOLED = balanced(balance_convention="transformers")
WHOLE = balanced(balance_scope="global_batch")


@fault(Router, "attached", plan(model=MEGATRON), plan(pipeline=2, model=MEGATRON))
def balance_loss_never_attached(original, mesh):
    """The balance loss is computed and logged, and no backward reaches it (NVIDIA-NeMo/Automodel#1408)."""
    return lambda self, logits: logits


@fault(loads, "slope_of_balance", plan(model=MEGATRON))
def balance_loss_times_tokens(original, mesh):
    """The balance loss is scaled as a sum over tokens, though it is a mean (NVIDIA-NeMo/Automodel#1412)."""
    return lambda experts, logits, weights: original(experts, logits, weights) * logits[..., 0].numel()


@fault(Router, "slope", plan(data=2, model=MEGATRON))
def balance_loss_divided_by_replicas(original, mesh):
    """The gradient of the balance loss is averaged over data ranks once more (NVIDIA/Megatron-LM#3672)."""
    return lambda self, logits: original(self, logits) / mesh.data.size


@fault(Router, "slope", plan(tensor=2, model=MEGATRON), plan(tensor=2, sequence_parallel=True, model=MEGATRON))
def balance_loss_once_per_tensor_rank(original, mesh):
    """Every tensor rank adds the whole gradient of the balance loss to that of the router (NVIDIA/Megatron-LM#5047)."""
    return lambda self, logits: original(self, logits) * mesh.tensor.size


@fault(Router, "balance_share", plan(pipeline=2, model=MEGATRON))
def balance_loss_once_per_stage(original, mesh):
    """The balance loss that is logged grows with the number of stages (databricks/megablocks#85)."""
    return lambda self: original(self) * mesh.pipeline.size


@fault(loads, "all_reduce_", plan(context=2, model=MEGATRON))
def loads_of_own_positions(original, mesh):
    """Loads are those of the positions of one context rank."""
    return lambda x, group: x


@fault(routers, "counts_first", plan(model=WHOLE))
def loads_of_one_micro_batch(original, mesh):
    """With accumulation, a balance loss of the batch takes the loads of each micro-batch."""
    return lambda *where: False


@fault(routers, "all_reduce_", plan(pipeline=2, schedule="zb-h1", model=POOLED))
def layers_of_one_stage_pooled(original, mesh):
    """Loads are pooled over the layers of one stage, as if they were all layers."""
    return lambda x, group: x * group.size if group is mesh.pipeline else original(x, group)


@fault(Router, "count", plan(recompute={"mode": "layer"}, model=MEGATRON))
def loads_counted_again_when_recomputed(original, mesh):
    """A recomputed forward counts its tokens a second time."""

    def count(self: Router, scores: Tensor, chosen: Tensor, dropped: Tensor | None = None) -> None:
        before, self.counts = self.counts, None
        original(self, scores, chosen, dropped)
        if before is not None and self.counts is not None and self._fractions is not None:
            self.counts, self._fractions = self.counts + before, 2 * self._fractions

    return count


@fault(Bucket, "add_to", plan(tensor=2, model=BIASED))
def biases_moved_once_per_tensor_rank(original, mesh):
    """The bias of each expert moves by its rate times the number of tensor ranks (pytorch/torchtitan#4245)."""
    return lambda self, slot, change: original(self, slot, change * mesh.tensor.size)


@fault(Routers, "update_biases", plan(data=2, model=BIASED))
def biases_from_own_tokens(original, mesh):
    """Biases follow the loads of a rank's own tokens, so that replicas drift apart."""
    return lambda self, sums: original(self, self.sums)


@fault(loads, "slope_of_z", plan(model=balanced(balance_loss=0.0, router_z_loss=0.05)))
def router_z_loss_as_if_not_squared(original, mesh):
    """The gradient of the z-loss of routers lacks the factor 2 of its square."""
    return lambda logits: original(logits) / 2
