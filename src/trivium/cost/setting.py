"""All that the seconds of a step depend on, in one place."""

from dataclasses import dataclass

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import Road, Strides, default_strides, road_between, road_to_neighbour
from trivium.cost.constants import Constants
from trivium.cost.hardware import Machine
from trivium.cost.kernels import Device
from trivium.cost.overlap import added_seconds
from trivium.cost.stack import Stack
from trivium.plan.layers.part import Number


@dataclass(frozen=True)
class Setting:
    """A case, where it runs and with what: all that prices depend on."""

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
        """Whether a step's kernels are asked for at once."""
        return np.asarray(self.case.recorded) * self.stack.replays

    def road(self, degree: Number, stride: Number) -> Road:
        """What a group talks over."""
        return road_between(self.machine, degree, stride, self.constants.fabric)

    def road_to(self, degree: Number, stride: Number) -> Road:
        """What neighbours send over."""
        return road_to_neighbour(self.machine, degree, stride, self.constants.fabric)

    @property
    def hides(self) -> bool:
        """Whether messages travel beside work: not where the ranks' own cores move the bytes."""
        return self.machine.sharing != "shared"

    def added(self, work: Number, moving: Number) -> Number:
        """What traffic that is under way beside work adds to it."""
        return added_seconds(work, moving, self.constants.data_overlap if self.hides else 0.0)

    @property
    def slowness(self) -> Number:
        """Return the factor on the pipeline's seconds: the slowest of many nodes, and what is known of the stack."""
        shared = self.machine.sharing == "shared"
        nodes = 1.0 if shared else np.maximum(1.0, np.asarray(self.case.ranks) / self.machine.devices_per_node)
        known = self.constants.remote_memory if self.stack.remote_memory else 1.0
        return known * (1 + self.constants.straggler * np.log2(nodes))


def setting(
    case: Case, machine: Machine, stack: Stack, constants: Constants, strides: Strides | None = None
) -> Setting:
    """Constants that were measured on the machine hold instead of the given ones."""
    if not stack.fused_elementwise:
        gemm = f"gemm_{machine.generation}"
        constants = constants.with_values({gemm: getattr(constants, gemm) * constants.eager_products})
    if stack.attention is not None:
        constants = constants.with_values({f"flash_{machine.generation}": stack.attention})
    constants = constants.with_values(machine.constants) if machine.constants else constants
    return Setting(case, machine, stack, constants, strides or default_strides(case, machine))
