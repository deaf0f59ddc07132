"""Seconds of products whose activations go round a ring of tensor ranks in pieces (`plan.overlap_tensor`)."""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import all_gather_seconds, send_seconds
from trivium.cost.overlap import ring_seconds
from trivium.cost.setting import Setting
from trivium.plan.layers.layer import HALVES
from trivium.plan.layers.part import Number

# Passes over a piece in memory beside its product: a gathered piece is sent and received, and its product is copied to
# its place; a sum is sent, received, and added to the next contribution.
GATHERED_PASSES, COPIED_PASSES, SUMMED_PASSES = 2, 2, 5


class RingProduct(NamedTuple):
    """A product in a ring on one rank: `inner` numbers of each position become `columns`. sums: whether the result is
    summed over the ranks; otherwise the input is gathered. plans: 1 for each plan that has it in a ring, else 0."""

    name: str
    backward: bool
    columns: Number
    inner: Number
    sums: bool
    plans: Number = 1

    @property
    def sent(self) -> Number:
        """Columns of the activations that go round."""
        return self.columns if self.sums else self.inner


class RingSeconds(NamedTuple):
    """alone: without a ring. ideal: product and messages do not slow each other. contended: they share the memory."""

    alone: Number
    ideal: Number
    contended: Number


def ring_products(case: Case) -> list[RingProduct]:
    """Return the products of a layer that are in a ring. In a model with different layers, the first layer represents
    all. What experts read is sorted first, so they have none."""
    found = []
    layer = case.different_layers[0][0]
    for key, half in layer.halves.items():
        name = HALVES[key]
        for p in half.products(case) if half.dispatched(case) is None else ():
            if p.outer:
                continue
            if p.enters:
                found.append(RingProduct(f"{name} input", False, p.columns, p.inner, sums=False))
                # Elsewhere the sum is beside the product of the weight's gradient.
                plans = case.puts_off if p.trained else 1
                if np.any(plans):
                    found.append(RingProduct(f"gradient of {name}'s input", True, p.inner, p.columns, True, plans))
            else:
                found.append(RingProduct(f"{name} output", False, p.columns, p.inner, sums=True))
                found.append(RingProduct(f"gradient of {name}'s output", True, p.inner, p.columns, sums=False))
    return found


def seconds_in_ring(at: Setting, p: RingProduct) -> RingSeconds:
    """Return the seconds of a product with its messages."""
    case, device, ranks = at.case, at.device, np.asarray(at.case.tensor)
    link, width = at.link(case.tensor, at.strides.tensor), case.weight_bytes
    rows = case.positions / ranks
    work, sent, made = device.product(rows, p.columns, p.inner), rows * p.sent * width, rows * p.columns * width
    moving = send_seconds(sent, link)
    alone = device.product(case.positions, p.columns, p.inner) + all_gather_seconds(ranks * sent, ranks, link)
    if not at.hides:
        beside: Number = ranks * work + (ranks - 1) * moving
        return RingSeconds(alone, beside, beside)
    operands = (rows * p.inner + p.columns * p.inner) * width + made
    passes = SUMMED_PASSES * sent if p.sums else GATHERED_PASSES * sent + COPIED_PASSES * made
    shared = (operands + passes) / device.memory
    return RingSeconds(alone, ring_seconds(work, moving, ranks), ring_seconds(np.maximum(work, shared), moving, ranks))


def spared_seconds(at: Setting) -> tuple[Number, Number]:
    """Return the seconds that rings spare a layer, forward and backward; negative where pieces cost more than they
    hide."""
    case = at.case
    rings = (np.asarray(case.in_ring) > 0) & (np.asarray(case.tensor) > 1)
    if not rings.any():
        return 0.0, 0.0
    spared = [(p, seconds_in_ring(at, p)) for p in ring_products(case)]
    each = [(p.backward, np.where(rings & (np.asarray(p.plans) > 0), s.alone - s.contended, 0.0)) for p, s in spared]
    return sum(s for back, s in each if not back), sum(s for back, s in each if back)
