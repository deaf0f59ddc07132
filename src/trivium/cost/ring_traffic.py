"""What goes round the ring of tensor ranks in pieces, and is therefore neither gathered nor scattered as a whole."""

from collections import Counter
from typing import NamedTuple

from trivium.plan.adapters import Adapted, is_added
from trivium.plan.layers.part import owned
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES
from trivium.plan.schedule import is_split


class Rings(NamedTuple):
    """Columns of the activations of one micro-batch in one stage that go round, a number for each time: gathered before
    a product, and summed after one."""

    gathered: tuple[int, ...]
    summed: tuple[int, ...]

    def messages(self, plan: Plan) -> int:
        """Return the number of messages that a rank sends."""
        return (plan.layout.tensor - 1) * (len(self.gathered) + len(self.summed))

    def traffic(self, plan: Plan) -> Counter[str]:
        """Return the bytes that are sent, less those that are gathered and scattered without a ring."""
        ranks, gathered, summed = plan.layout.tensor, sum(self.gathered), sum(self.summed)
        piece = plan.local_sequence * plan.batch.micro // ranks * BYTES[plan.precision.weights]
        sent = (ranks - 1) * (gathered + summed) * piece
        return Counter(send=sent, all_gather=-gathered * piece, reduce_scatter=-summed * ranks * piece)


def rings(plan: Plan, stage: int, *, backward: bool = True) -> Rings:
    """Return what goes round in a stage. backward: whether there is one after the forward.

    The gradient of the inputs of a column-split weight is summed as a whole, beside the product of the weight's
    gradient, where that is computed at once.
    """
    gathered, summed = list[int](), list[int]()
    if not plan.tensor_ring:
        return Rings((), ())
    experts = tuple(f"layers.{number}.mlp." for number in plan.model.experts_by_layer)  # what enters is sorted first
    puts_off = is_split(plan.schedule_table())
    for number in plan.layers_of(stage):
        layer = plan.model.each_layer[number]
        times = 1 + (backward and plan.recompute.mode_of(number) == "layer")
        own = [row for row in owned(layer.rows, f"layers.{number}", number) if not row.name.startswith(experts)]
        entering = [(p.shape[-1], plan.optimizer.trains(p)) for p in own if p.splits_outputs and not is_added(p)]
        added = [(each.sums(), trains_outputs(plan, number, each)) for each in layer.adapted or ()]
        entering += [(sums.entering, trained) for sums, trained in added if sums.entering]
        leaving = [p.shape[0] for p in own if p.splits_inputs and not is_added(p)]
        leaving += [sums.leaving for sums, _ in added if sums.leaving]
        gathered += [columns for columns, _ in entering] * times + leaving * backward
        summed += leaving * times + [n for n, trained in entering if backward and (puts_off or not trained)]
    return Rings(tuple(gathered), tuple(summed))


def trains_outputs(plan: Plan, number: int, adapted: Adapted) -> bool:
    """Return whether an adapter of a layer trains a parameter that is split by its outputs."""
    rows = owned(adapted.rows, f"layers.{number}", number)
    return any(row.splits_outputs and plan.optimizer.trains(row) for row in rows)
