"""Seconds of a pass of the whole batch that has no backward.

Preferences score the completions of a batch before they train on it, the reference and a teacher score every batch once
before the training, and the loads of experts may have to be counted before a step.
"""

import numpy as np

from trivium.cost.prices import Prices
from trivium.cost.rank_work import rank_work
from trivium.cost.setting import Setting
from trivium.cost.sharing import on_shared_cores
from trivium.plan.layers.part import Number


def forward_passes_seconds(at: Setting, pieces: Prices) -> Number:
    """Return the seconds of the forward-only passes before each step."""
    scoring, counting = (np.asarray(n) for n in (at.case.forward_passes, at.case.counting_passes))
    scored = scoring * forward_pass_seconds(at, pieces) if scoring.any() else 0.0
    counted = counting * forward_pass_seconds(at, pieces, with_head=False) if counting.any() else 0.0
    return scored + counted


def forward_pass_seconds(at: Setting, pieces: Prices, *, with_head: bool = True) -> Number:
    """Return the seconds of a forward-only pass under the plans of a case, from their pieces as `prices` returns them.

    with_head: whether the pass computes log-probabilities; loads of experts need none. With one stage for each rank,
    every micro-batch passes the same ranks in the same order, and the form is exact. An interleaved rank begins with
    new micro-batches only when those in flight have come round.
    """
    case = at.case
    head = pieces.head_forward.times(float(with_head))
    layer = pieces.layer_forward._replace(host=0.0)  # Without a backward no activations are kept, nor copied.
    ranks = rank_work(case, layer, pieces.embedding_forward, head)
    m, p, v = (np.asarray(n) for n in (case.micro_batches, case.pipeline, case.chunks))
    busiest, whole = ranks.busiest.total, ranks.whole.total
    folded = np.asarray(case.ends_together) > 0  # The rank where a V turns round has its two stages in a row.
    around = np.maximum(0.0, (whole + p * v * pieces.transfer) / p - busiest)
    stalled = np.where((v > 1) & ~folded, around, 0.0)
    if at.stack.blocking_transfers:  # A rank waits for each of its transfers.
        stalled = np.where(p > 1, v * pieces.transfer, 0.0)
    transfers = np.where(folded, 2, 1) * (p - 1) * pieces.transfer + (m - 1) * stalled
    seconds = m * busiest + np.where(p > 1, (whole - busiest) / np.where(folded, 1, v), 0.0) + transfers
    if at.machine.sharing == "shared":
        mean, core_share = ranks.whole.times(m / p), at.constants.core_share
        seconds = on_shared_cores(at.machine, case, mean, seconds, transfers, core_share).seconds
    found: Number = at.stack.factor * seconds
    return found
