"""The routers of a training step: their losses, the loads of their experts, and the biases that follow from loads.

Legend: L layers of experts in the whole model, E their largest number of experts, G sequences or 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.mesh import Mesh
from trivium.model.inputs import Inputs
from trivium.model.loads import Averaging, Loads
from trivium.objectives.routers import BALANCE_LOSS, ROUTER_Z_LOSS, counts_first, router_loss_names
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.experts import Experts
from trivium.plan.plan import Plan

Tensor = torch.Tensor
Counting = Callable[[Sequence[Inputs]], object]  # runs the forward of all micro-batches


class LayerLoad(NamedTuple):
    """The choices of a layer's tokens in a step. counts: of each expert. dropped: those beyond an expert's capacity;
    None without a capacity."""

    counts: tuple[int, ...]
    dropped: int | None = None

    @property
    def largest(self) -> float:
        """The largest load, divided by the mean."""
        return max(self.counts) * len(self.counts) / (sum(self.counts) or 1)

    @property
    def entropy(self) -> float:
        """The entropy of the shares, divided by that of an even load."""
        total = sum(self.counts)
        entropy = sum(n / total * math.log(total / n) for n in self.counts if n)
        return entropy / math.log(len(self.counts)) if len(self.counts) > 1 else 1.0

    def told(self) -> dict[str, Any]:
        """Return the loads in brief, for a line of metrics."""
        total = sum(self.counts) or 1
        shares = [float(f"{n / total:.3g}") for n in self.counts]
        found = {"largest": round(self.largest, 4), "entropy": round(self.entropy, 4), "shares": shares}
        return found if self.dropped is None else {**found, "dropped": self.dropped}


class Routers:
    """The routers of a rank's stages. `sums` has the choices of this rank's tokens in the last step, [L (E + 1)]: how
    many for each expert, and how many were dropped. Only the first tensor rank counts, because all choose alike."""

    def __init__(self, plan: Plan, mesh: Mesh, buckets: Sequence[Bucket]) -> None:
        self.plan, self.mesh = plan, mesh
        self.experts = plan.model.experts_by_layer
        self.width = max(e.count for e in self.experts.values()) + 1
        self.sums = torch.zeros(len(self.experts) * self.width, dtype=torch.float64, device=mesh.device)
        places = {slot.row.name: (bucket, slot) for bucket in buckets for slot in bucket.slots}
        # Adapters freeze the rest of the model, and a group of the optimizer may freeze a bias.
        groups, adapts = plan.optimizer, bool(plan.model.adapters)
        self._biases = {
            layer: places[name]
            for layer, experts in self.experts.items()
            if experts.bias_rate is not None
            and (name := f"layers.{layer}.mlp.router.bias") in places
            and not adapts
            and groups.every[groups.number_of(name)].trainable
        }
        self._loads: list[Loads] = []

    def watching(self, inputs: Sequence[Inputs], sequences: int, loss_scale: float, counting: Counting) -> list[Inputs]:
        """Return micro-batches whose routers are counted, and add the gradients of their losses. sequences: of the
        whole batch. counting: runs a forward pass, if loads must be known before the first backward."""
        mesh = self.mesh
        averaging = Averaging(
            sequence=self.plan.model.sequence,
            tokens=sequences * self.plan.model.sequence,
            layers=len(self.experts),
            scale=loss_scale / mesh.tensor.size,
            context=mesh.context,
            replicas=mesh.replicas,
        )
        micro = self.plan.batch.micro
        counted: Sequence[Mapping[int, Tensor] | None] = [None] * len(inputs)
        if counts_first(self.plan.model, self.plan.stages, len(inputs)):
            first = [replace(each, loads=Loads(averaging, micro, counted={}, counts_only=True)) for each in inputs]
            counting(first)
            counted = self._fractions([each.loads for each in first if each.loads is not None])
        self._loads = [Loads(averaging, micro, before) for before in counted]
        return [replace(each, loads=loads) for each, loads in zip(inputs, self._loads, strict=True)]

    @torch.no_grad()
    def _fractions(self, every: Sequence[Loads]) -> list[Mapping[int, Tensor]]:
        """Return the fractions of tokens by layer for each micro-batch, from a pass that counts them."""
        found: list[dict[int, Tensor]] = [{} for _ in every]
        for layer, experts in self.experts.items():
            if experts.balance_loss and layer in every[0].routers:
                counts = [loads.routers[layer].counts for loads in every]
                fractions = self._layer_fractions(torch.stack([c for c in counts if c is not None]), experts, every[0])
                for each, f in zip(found, fractions, strict=True):
                    each[layer] = f
        pooled = any(e.balance_loss and e.balance_convention == "transformers" for e in self.experts.values())
        return self._pooled(found) if pooled else list(found)

    def _layer_fractions(self, counts: Tensor, experts: Experts, loads: Loads) -> Tensor:
        """Counts [micro-batches, G, E] of this rank's tokens -> fractions of the same shape."""
        tokens, group = loads.averaging.set_of(experts, loads.sequences)
        sets = counts.sum(0, keepdim=True) if experts.balance_scope == "global_batch" else counts
        return (all_reduce_(sets, group) / (experts.chosen * tokens)).expand_as(counts)

    def _pooled(self, found: Sequence[Mapping[int, Tensor]]) -> list[Mapping[int, Tensor]]:
        """Return the mean over all layers of experts, of all stages, in place of each layer's own."""
        experts = next(iter(self.experts.values()))
        sets = self.plan.batch.micro if experts.balance_scope == "sequence" else 1
        zeros = torch.zeros(len(found), sets, experts.count, dtype=torch.float64, device=self.mesh.device)
        here = [torch.stack(list(each.values())).sum(0) for each in found if each]
        total = all_reduce_(torch.stack(here) if here else zeros, self.mesh.pipeline) / len(self.experts)
        return [dict.fromkeys(self.experts, mean) for mean in total]

    @torch.no_grad()
    def finish(self, loss_scale: float) -> dict[str, Tensor]:
        """Return this rank's shares of the losses of the watched step, times `loss_scale`, and keep the choices of its
        routers."""
        losses = {
            name: torch.zeros((), dtype=torch.float64, device=self.mesh.device)
            for name in router_loss_names(self.plan.model)
        }
        self.sums.zero_()
        rows = self.sums.view(len(self.experts), self.width)
        numbers = {layer: n for n, layer in enumerate(self.experts)}
        for router in (router for loads in self._loads for router in loads.routers.values()):
            experts, row = router.experts, rows[numbers[router.layer]]
            if experts.balance_loss:
                losses[BALANCE_LOSS] += router.balance_share() * loss_scale
            if experts.router_z_loss:
                losses[ROUTER_Z_LOSS] += router.z_share() * loss_scale
            if self.mesh.tensor.index == 0 and router.counts is not None:
                row[: experts.count] += router.counts.sum(0)
                if router.dropped is not None:
                    row[-1] += router.dropped
        self._loads = []
        return losses

    @torch.no_grad()
    def update_biases(self, sums: Tensor) -> None:
        """Move the bias of each expert towards an even load, once an update was accepted (arXiv 2408.15664).

        sums: those of all ranks, so that every rank moves its biases equally.
        """
        rows = sums.view(len(self.experts), self.width)
        for number, (layer, experts) in enumerate(self.experts.items()):
            if layer in self._biases:
                bucket, slot = self._biases[layer]
                counts = rows[number, : experts.count]
                directions = (counts.sum() - experts.count * counts).sign()  # exact, as counts are whole numbers
                bucket.add_to(slot, directions * (experts.bias_rate or 0.0))

    def told(self, sums: Sequence[float]) -> dict[int, LayerLoad]:
        """Return the choices of a step by layer, from the sums of all ranks."""
        found = {}
        for number, (layer, experts) in enumerate(self.experts.items()):
            row = [round(x) for x in sums[number * self.width : (number + 1) * self.width]]
            dropped = None if experts.capacity is None else row[-1]
            found[layer] = LayerLoad(tuple(row[: experts.count]), dropped)
        return found
