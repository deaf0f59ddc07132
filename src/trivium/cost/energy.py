"""Energy of a step: watts of the devices while they are busy and while they wait, and watts of their hosts.

A device is busy while it computes or communicates. It waits in the bubble of the pipeline, for transfers between
stages, and where other pipeline ranks have more work.
"""

import numpy as np

from trivium.cost.forward_pass import forward_passes_seconds
from trivium.cost.hardware import Machine
from trivium.cost.prices import Piece, Prices
from trivium.cost.replicas import Fullest, data_seconds, optimizer_seconds
from trivium.cost.setting import Setting
from trivium.errors import ConfigError
from trivium.plan.layers.part import Number


def busy_seconds(at: Setting, pieces: Prices, fullest: Fullest, mean: Piece) -> Number:
    """Return the seconds of a step in which a device is busy, as the mean of all devices.

    mean: a rank's work with a device of its own, over all its micro-batches and averaged over pipeline ranks. Ranks
    that share cores need one for a part of their collectives only.
    """
    work: Number = mean.total
    ranks_per_device: Number = 1.0
    if at.machine.sharing == "shared":
        work = mean.compute + at.constants.core_share * (mean.total - mean.compute)
        ranks_per_device = np.asarray(at.case.ranks) / at.machine.devices
    own = at.stack.factor * (work + data_seconds(at, pieces, fullest) + optimizer_seconds(at, fullest))
    found: Number = ranks_per_device * own + forward_passes_seconds(at, pieces)
    return found


def step_joules(machine: Machine, ranks: Number, seconds: Number, busy: Number) -> Number:
    """Return the energy of a step of `ranks` ranks. busy: the seconds in which a device is busy.

    Where the machine names no idle watts, a device that waits counts with those under load; where it names no watts of
    a host, hosts are not counted. Raises ConfigError if it names none of a device.
    """
    if machine.watts is None:
        raise ConfigError(
            f"{machine.name} names no watts, and the energy of a step is a sum of watts times seconds; add `watts` (of "
            f"one device under load) to its file, and `idle_watts` and `host_watts` where they are known"
        )
    load = machine.watts
    idle, host = load if machine.idle_watts is None else machine.idle_watts, machine.host_watts or 0.0
    shared = machine.sharing == "shared"
    devices = machine.devices if shared else np.asarray(ranks)
    nodes = 1 if shared else np.ceil(np.asarray(ranks) / machine.devices_per_node)
    joules: Number = devices * (load * busy + idle * (seconds - busy)) + nodes * host * seconds
    return joules
