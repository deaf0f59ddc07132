"""The inputs of the seconds of a step: plan, machine, software stack, constants and strides."""

from dataclasses import dataclass

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import GroupLink, Strides, default_strides, link_of_group, link_to_neighbour
from trivium.cost.constants import Constants
from trivium.cost.hardware import Machine
from trivium.cost.kernels import Device
from trivium.cost.overlap import added_seconds
from trivium.cost.stack import Stack
from trivium.plan.layers.part import Number


@dataclass(frozen=True)
class Setting:
    """A case, its machine and software stack, and the constants and strides to price it with."""

    case: Case
    machine: Machine
    stack: Stack
    constants: Constants
    strides: Strides

    @property
    def device(self) -> Device:
        return Device(self.machine, self.constants, self.case.weight_bytes, self.case.fp16)

    @property
    def is_replayed(self) -> Number:
        """Whether the step is replayed as a CUDA graph."""
        return np.asarray(self.case.recorded) * self.stack.replays

    def link(self, degree: Number, stride: Number) -> GroupLink:
        """Return the link of a group of `degree` ranks, `stride` apart."""
        return link_of_group(self.machine, degree, stride, self.constants.fabric)

    def link_to(self, degree: Number, stride: Number) -> GroupLink:
        """Return the link between neighbours along an axis."""
        return link_to_neighbour(self.machine, degree, stride, self.constants.fabric)

    @property
    def hides(self) -> bool:
        """Whether communication overlaps with compute. It does not if the ranks' own cores move the bytes."""
        return self.machine.sharing != "shared"

    def added(self, work: Number, moving: Number) -> Number:
        """Return the exposed seconds of communication that runs concurrently with work."""
        return added_seconds(work, moving, self.constants.data_overlap if self.hides else 0.0)

    @property
    def slowness(self) -> Number:
        """The factor on the pipeline's seconds for stragglers among many nodes and for remote memory access."""
        shared = self.machine.sharing == "shared"
        nodes = 1.0 if shared else np.maximum(1.0, np.asarray(self.case.ranks) / self.machine.devices_per_node)
        known = self.constants.remote_memory if self.stack.remote_memory else 1.0
        return known * (1 + self.constants.straggler * np.log2(nodes))


def setting(
    case: Case, machine: Machine, stack: Stack, constants: Constants, strides: Strides | None = None
) -> Setting:
    """Return the setting. Constants that were measured on the machine replace the given ones."""
    if not stack.fused_elementwise:
        gemm = f"gemm_{machine.generation}"
        constants = constants.with_values({gemm: getattr(constants, gemm) * constants.eager_products})
    if stack.attention is not None:
        constants = constants.with_values({f"flash_{machine.generation}": stack.attention})
    constants = constants.with_values(machine.constants) if machine.constants else constants
    return Setting(case, machine, stack, constants, strides or default_strides(case, machine))
