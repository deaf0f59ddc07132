"""Seconds that context ranks' messages add to one layer and micro-batch, where attention does not hide them."""

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import exchange_seconds, send_seconds
from trivium.cost.layer import attention_seconds
from trivium.cost.setting import Setting
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Exchanged, Number


def context_seconds(at: Setting) -> tuple[Number, Number]:
    """What context ranks add to a layer, forward and backward: keys and values around a ring, beside attention where
    the stack overlaps them; or heads for positions and back (Ulysses)."""
    case, ranks = at.case, np.asarray(at.case.context)
    if (ranks == 1).all():
        return 0.0, 0.0
    sent = case.of_a_layer(lambda layer: sum(e.into + e.out for e in _exchanged(layer, case)))
    ring_sent = case.of_a_layer(lambda layer: sum(e.ring for e in _exchanged(layer, case)))
    heads = case.positions * sent * case.weight_bytes
    exchange = 2 * exchange_seconds(at.machine, heads / 2, case.context, at.strides.context, at.constants.fabric)
    ring_forward, ring_backward = _ring_seconds(at, case.positions * ring_sent)
    ring = np.asarray(case.ring) > 0
    forward = np.where(ring, ring_forward, exchange) * (ranks > 1)
    backward = np.where(ring, ring_backward, exchange) * (ranks > 1)
    return forward, backward


def _exchanged(layer: Layer, case: Case) -> list[Exchanged]:
    found = (half.exchanged(case) for half in layer.halves.values())
    return [each for each in found if each is not None]


def _ring_seconds(at: Setting, elements: Number) -> tuple[Number, Number]:
    """elements: of a rank's keys and values. The next ones are under way while these are attended to; their gradients,
    at least 4 bytes wide, follow one turn behind, and nothing is left to do while the last go home."""
    case, ranks = at.case, np.asarray(at.case.context)
    road = at.road_to(case.context, at.strides.context)
    keys = send_seconds(elements * case.weight_bytes, road)
    wide = send_seconds(elements * np.maximum(4, case.weight_bytes), road)
    forward, backward = (core / ranks for core in attention_seconds(case, at.device))  # of one turn

    def added(work: Number, moving: Number) -> Number:
        return at.added(work, moving) if at.stack.overlaps_context else moving

    inner = (ranks - 2) * added(backward, keys + wide)
    return (ranks - 1) * added(forward, keys), added(backward, keys) + inner + added(backward, wide) + wide
