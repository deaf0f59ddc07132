"""The largest absolute values of the operands of 8-bit products in the last steps, from which delayed scales follow.

Scales change only between steps. All ranks have the values of all layers, each over the micro-batches of all ranks, so
that scales do not depend on the layout.

Legend: L scaled linear layers of the model, N steps of the history.
"""

from collections.abc import Mapping

import torch

from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import Fragment
from trivium.comms.collectives import all_reduce_
from trivium.comms.mesh import Mesh
from trivium.kernels.dtypes import DTYPES
from trivium.kernels.scaled import OPERANDS, Earlier, Step
from trivium.model.stage import Stage
from trivium.plan.float8 import scaled_weights
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan

KIND = "float8_amax"  # of tensors in a checkpoint


class Amaxes:
    """history [N, L, 3]: the newest first, 0 before the first step; without the factor of scaled losses. step: what the
    layers know of the current pass."""

    def __init__(self, plan: Plan, mesh: Mesh, stages: Mapping[int, Stage]) -> None:
        float8 = plan.precision.float8
        assert float8 is not None, "only 8-bit products have scales"
        rows = scaled_weights(float8, parameters(plan.model), plan.model.layers)
        self.names = [p.name for p in rows]
        shape = len(self.names), len(OPERANDS)
        dtype = DTYPES[plan.precision.masters]
        self.history = torch.zeros((float8.history, *shape), dtype=dtype, device=mesh.device)
        self.step, self._mesh = Step(), mesh
        self._past, self._seen = (torch.zeros(shape, dtype=dtype, device=mesh.device) for _ in range(2))
        number_of = {name: number for number, name in enumerate(self.names)}
        for stage in stages.values():
            for name, products in stage.scaled.items():
                number = number_of[name]
                products.earlier = Earlier(self._past[number], self._seen[number], self.step)

    def begin_pass(self, loss_scale: float, *, training: bool) -> None:
        """Set the values that scales follow from, before a step (`training`) or an evaluation. The gradients of a step
        are multiplied by `loss_scale`."""
        self.step.collects = training
        self._past.copy_(self.history.amax(0))
        self._past[:, OPERANDS["gradients"]] *= loss_scale

    @torch.no_grad()
    def end_step(self, loss_scale: float, *, updated: bool) -> None:
        """Remember the values of a step, if it has updated the weights; every rank calls this."""
        if updated:
            self._seen[:, OPERANDS["gradients"]] /= loss_scale
            for group in (self._mesh.replicas, self._mesh.tensor, self._mesh.pipeline):
                all_reduce_(self._seen, group, largest=True)
            self._seen.masked_fill_(~self._seen.isfinite(), 0)
            self.history.copy_(self.history.roll(1, 0))
            self.history[0] = self._seen
            self.step.has_past = True
        self._seen.zero_()

    def fragments(self) -> list[Fragment]:
        """Return the history as tensors of a checkpoint, [N, 3] for each layer, all written by the first rank."""
        if self._mesh.rank != 0 or not self.step.has_past:
            return []
        shape = len(self.history), len(OPERANDS)
        box = Box((0, 0), shape)
        every = zip(self.names, self.history.unbind(1), strict=True)
        return [Fragment(f"{KIND}/{name}", shape, box, values.contiguous()) for name, values in every]

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load the history of a checkpoint. Where a layer has none, the next step begins one."""
        tensors = checkpoint.manifest["tensors"]
        if not all(f"{KIND}/{name}" in tensors for name in self.names):
            return
        for number, name in enumerate(self.names):
            steps = min(len(self.history), tensors[f"{KIND}/{name}"]["shape"][0])
            box = Box((0, 0), (steps, len(OPERANDS)))
            values = checkpoint.read(f"{KIND}/{name}", box, self.history.dtype)
            self.history[:steps, number] = values.to(self.history.device)
        self.step.has_past = True
