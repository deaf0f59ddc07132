"""Peak allocated bytes of other training systems on their worst GPU, as torch.cuda.max_memory_allocated counts them.

For comparison with published runs (docs/memory.md). CUDA's context, NCCL's buffers and reserved but unallocated memory
are not included, so nvidia-smi shows more. No constant is fitted.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.activations import layer_bytes
from trivium.cost.case import ATTENTION, LAYER, NONE, Case, mean, take
from trivium.cost.memory_peaks import MemoryPeak, peaks_of_case
from trivium.cost.rank_parameters import layer_parameters, rank_parameters, table_parameters
from trivium.cost.stack import Stack
from trivium.cost.step_time import SCHEDULES
from trivium.plan.layers.part import Number

ADAM_BYTES = 12  # per parameter: an fp32 copy of the weights and two moments
FP32_BYTES = 4  # per parameter: an fp32 copy of 16-bit gradients for the update
GATHERED_LAYERS = 2  # gathered layers of ZeRO-3: the current and the next one


class Rules(NamedTuple):
    """Allocations that are specific to a system.

    logit: bytes per logit in the loss. placeholders: autograd keeps one empty gradient of each distinct shape for
    gradients that were already accumulated. gather_buffer: sequence parallelism gathers the head's input into a
    persistent buffer.
    """

    logit: int
    placeholders: bool
    gather_buffer: bool


# Logits in 16 bits and in fp32, and the fp32 softmax; or, fused, in 16 bits with their gradient.
CLASSIC = Rules(logit=10, placeholders=False, gather_buffer=False)
MEGATRON_CORE = Rules(logit=4, placeholders=True, gather_buffer=True)


def published_memory(case: Case, stack: Stack) -> Number:
    """Return the peak bytes allocated on the worst rank of every plan of a case, as an array.

    States are sharded over data x context ranks. Plans with chunks are interleaved, the others 1F1B.
    """
    rules = MEGATRON_CORE if stack.name.startswith("megatron-core") else CLASSIC
    schedule = np.where(np.asarray(case.chunks) > 1, SCHEDULES["interleaved"], SCHEDULES["1f1b"])
    found = [(which, _total(take(case, which), at, rules)) for which, at in peaks_of_case(case, schedule)]
    every, _ = found[0]
    worst = np.zeros(len(every))
    for which, total in found:
        worst[which] = np.maximum(worst[which], total)
    return worst


def _total(case: Case, at: MemoryPeak, rules: Rules) -> Number:
    held = _states(case, at) + _activations(case, at) + at.last * _head(case, rules)
    return held + rules.placeholders * _placeholders(case, at)


def _states(case: Case, at: MemoryPeak) -> Number:
    c, zero = case, np.asarray(case.zero)
    parameters = rank_parameters(c, at.layers, at.first, at.last)
    update = ADAM_BYTES + np.where(np.asarray(c.gradient_bytes) < FP32_BYTES, FP32_BYTES, 0)

    def share(stage: int) -> Number:
        return np.where(zero >= stage, 1 / np.asarray(c.sharers), 1.0)

    gathered = np.where(zero >= 3, GATHERED_LAYERS * layer_parameters(c), 0)
    per_parameter = c.weight_bytes * share(3) + c.gradient_bytes * share(2) + update * share(1)
    return parameters * per_parameter + c.weight_bytes * gathered


def _activations(case: Case, at: MemoryPeak) -> Number:
    """Return the bytes of the layers in flight, of one recomputed layer, and of the embedding's dropout mask."""
    c = case
    whole, kept = _layer(c, NONE), _layer(c, c.recompute)
    again = np.where(np.asarray(c.recompute) == LAYER, whole - kept, 0)
    dropout = mean(c.embeddings, lambda embedding: 1 * np.asarray(embedding.drops))
    mask = at.embedded * dropout * c.positions * c.hidden / c.along
    return at.kept * whole + at.recomputed * kept + (np.asarray(at.layers) > 0) * again + mask


def _layer(case: Case, mode: Number) -> Number:
    """Return the count of Korthikanti et al. for a layer. Fused attention recomputes its scores."""
    fused = np.asarray(case.scores_kept) == 0
    return layer_bytes(case, np.where(fused & (np.asarray(mode) == NONE), ATTENTION, mode), counting="paper")


def _head(case: Case, rules: Rules) -> Number:
    """Return the bytes of the final norm's input and output, the logits, and the gather buffer."""
    c = case
    norm = 2 * c.positions * c.hidden * c.weight_bytes / c.along
    split = np.asarray(c.sequence_parallel) * (np.asarray(c.tensor) > 1)
    gathered = rules.gather_buffer * split * c.positions * c.hidden * c.weight_bytes
    return norm + rules.logit * c.positions * c.vocabulary / c.tensor + gathered


def _placeholders(case: Case, at: MemoryPeak) -> Number:
    """Return the bytes of one gradient of each matrix shape of a layer and of the head."""
    matrices = layer_parameters(case) - 2 * case.hidden
    return case.weight_bytes * ((np.asarray(at.layers) > 0) * matrices + at.last * table_parameters(case))
