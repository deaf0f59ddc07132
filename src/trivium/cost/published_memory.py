"""Bytes that other training systems allocate on their worst rank, on GPUs: the peak that torch counts as allocated.

For comparison with published runs (docs/memory.md). Not in it: CUDA's context, NCCL's buffers, and what the allocator
holds but has not given out; what nvidia-smi shows is therefore larger. Nothing here is fitted.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.activations import layer_bytes
from trivium.cost.case import ATTENTION, LAYER, NONE, Case, mean, take
from trivium.cost.moments import Moment, moments_of_cases
from trivium.cost.rank_parameters import layer_parameters, rank_parameters, table_parameters
from trivium.cost.stack import Stack
from trivium.cost.step_time import SCHEDULES
from trivium.plan.layers.part import Number

ADAM = 12  # bytes per parameter: an fp32 copy of the weights and two moments
FP32_GRADIENT = 4  # of gradients that accumulate in 16 bits, a copy for the update
PREFETCHED = 2  # layers that ZeRO stage 3 has together: the one at work, and the next


class Rules(NamedTuple):
    """What a system allocates by its own habits.

    logit: bytes for each, at the loss. placeholders: gradients that were already added to the main ones leave an
    empty tensor behind for autograd, one of each distinct shape, kept. gather_buffer: sequence parallelism gathers the
    output layer's input into a buffer that stays.
    """

    logit: int
    placeholders: bool
    gather_buffer: bool


# Logits in 16 bits and in fp32, and the fp32 softmax; or, fused, in 16 bits with their gradient.
CLASSIC = Rules(logit=10, placeholders=False, gather_buffer=False)
MEGATRON_CORE = Rules(logit=4, placeholders=True, gather_buffer=True)


def published_memory(case: Case, stack: Stack) -> Number:
    """Peak bytes allocated on the worst rank of every plan of a case: an array with one entry per plan.

    States are sharded over data x context ranks; chunked stages are interleaved, others 1F1B.
    """
    rules = MEGATRON_CORE if stack.name.startswith("megatron-core") else CLASSIC
    schedule = np.where(np.asarray(case.chunks) > 1, SCHEDULES["interleaved"], SCHEDULES["1f1b"])
    found = [(which, _total(take(case, which), at, rules)) for which, at in moments_of_cases(case, schedule)]
    every, _ = found[0]
    worst = np.zeros(len(every))
    for which, total in found:
        worst[which] = np.maximum(worst[which], total)
    return worst


def _total(case: Case, at: Moment, rules: Rules) -> Number:
    held = _states(case, at) + _activations(case, at) + at.last * _head(case, rules)
    return held + rules.placeholders * _placeholders(case, at)


def _states(case: Case, at: Moment) -> Number:
    c, zero = case, np.asarray(case.zero)
    parameters = rank_parameters(c, at.layers, at.first, at.last)
    update = ADAM + np.where(np.asarray(c.gradient_bytes) < FP32_GRADIENT, FP32_GRADIENT, 0)

    def share(stage: int) -> Number:
        return np.where(zero >= stage, 1 / np.asarray(c.sharers), 1.0)

    gathered = np.where(zero >= 3, PREFETCHED * layer_parameters(c), 0)
    per_parameter = c.weight_bytes * share(3) + c.gradient_bytes * share(2) + update * share(1)
    return parameters * per_parameter + c.weight_bytes * gathered


def _activations(case: Case, at: Moment) -> Number:
    """Layers in flight, what recomputing one of them fills again, and the embedding's mask."""
    c = case
    whole, kept = _layer(c, NONE), _layer(c, c.recompute)
    again = np.where(np.asarray(c.recompute) == LAYER, whole - kept, 0)
    dropout = mean(c.embeddings, lambda embedding: 1 * np.asarray(embedding.drops))
    mask = at.embedded * dropout * c.positions * c.hidden / c.along
    return at.kept * whole + at.recomputed * kept + (np.asarray(at.layers) > 0) * again + mask


def _layer(case: Case, mode: Number) -> Number:
    """Korthikanti et al.'s count. Fused attention computes its scores again."""
    fused = np.asarray(case.scores_kept) == 0
    return layer_bytes(case, np.where(fused & (np.asarray(mode) == NONE), ATTENTION, mode), counting="paper")


def _head(case: Case, rules: Rules) -> Number:
    """The last norm's input and output, the logits, and the buffer into which their input is gathered."""
    c = case
    norm = 2 * c.positions * c.hidden * c.weight_bytes / c.along
    split = np.asarray(c.sequence_parallel) * (np.asarray(c.tensor) > 1)
    gathered = rules.gather_buffer * split * c.positions * c.hidden * c.weight_bytes
    return norm + rules.logit * c.positions * c.vocabulary / c.tensor + gathered


def _placeholders(case: Case, at: Moment) -> Number:
    """One gradient of each shape of a layer's matrices, and of the output's."""
    matrices = layer_parameters(case) - 2 * case.hidden
    return case.weight_bytes * ((np.asarray(at.layers) > 0) * matrices + at.last * table_parameters(case))
