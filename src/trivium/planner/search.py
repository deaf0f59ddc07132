"""The best plans for a model, a batch and a machine."""

from typing import NamedTuple

from trivium.cost.estimate import Estimate, estimate
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.batch import Batch
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.planner.candidates import candidates
from trivium.planner.config import SearchSpace


class Ranked(NamedTuple):
    """A plan and its price."""

    plan: Plan
    estimate: Estimate


def choose(
    model: ModelShape,
    batch: Batch,
    machine: Machine,
    *,
    ranks: int,
    space: SearchSpace | None = None,
    precision: Precision | None = None,
) -> tuple[Ranked, ...]:
    """Every legal plan, best first: those that fit in memory by seconds per step, then the others by bytes.

    All are priced in closed form, and the fastest simulated. Raises ConfigError when the machine has too few
    devices or no plan is legal.
    """
    space, precision = space or SearchSpace(), precision or Precision()
    problems = machine.problems(ranks)
    if problems:
        raise ConfigError("\n".join(problems))
    tensor_limit = machine.devices_per_node if machine.sharing == "exclusive" else ranks
    found = candidates(model, batch, ranks=ranks, space=space, precision=precision, tensor_limit=tensor_limit)
    priced = sorted((Ranked(p, estimate(p, machine, method="closed form")) for p in found), key=_order)
    if not priced:
        raise ConfigError(
            f"no layout of {ranks} ranks is legal for plan.model (layers {model.layers}, heads {model.heads}) and "
            f"plan.batch.sequences {batch.sequences}; choose ranks that divide heads x layers, and a batch that "
            f"the ranks divide"
        )
    finalists = [Ranked(r.plan, estimate(r.plan, machine)) for r in priced[: space.finalists]]
    return (*sorted(finalists, key=_order), *priced[space.finalists :])


def _order(ranked: Ranked) -> tuple[bool, float, int]:
    price = ranked.estimate
    if not price.fits:
        return True, float(price.memory.total), 0
    return False, float(f"{price.seconds:.6g}"), price.memory.total  # of equal seconds, the smaller
