"""Conversion of rows of token ids into the inputs of a rank's stages."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.kernels.crossing import sent
from trivium.kernels.dropout import DropoutKey
from trivium.kernels.sight import Sight
from trivium.model.inputs import Inputs
from trivium.objectives.distillation.objective import Distillation
from trivium.objectives.objective import NEXT_TOKEN, Objective
from trivium.parallel.tensor.divergence import Teacher
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows

SPARSE_SHARE = 0.75  # of the targets, below which the losses of the others are not computed
TEACHER_IDS, TEACHER_LOGS = "ids", "logs"  # beside the tokens: what a teacher stored about each target
Read = Callable[[int, int], Rows]  # reads samples [first, first + count)


def padded(read: Read, end: int) -> Read:
    """Return a reader of the same samples up to `end`, and after it of the last sample again, with weight 0. Padding
    has to be text that the model can read, of which no loss is infinite that was not so anyway."""

    def read_more(first: int, count: int) -> Rows:
        there = min(max(end - first, 0), count)
        rows = read(min(first, end - 1), max(there, 1))
        lacks = ((0, count - len(rows.tokens)), (0, 0))
        weights = np.pad(rows.weights, lacks)
        weights[there:] = 0
        starts = None if rows.starts is None else np.pad(rows.starts, lacks, "edge")
        beside = {name: np.pad(x, (*lacks, *[(0, 0)] * (x.ndim - 2)), "edge") for name, x in rows.beside.items()}
        tokens, targets = np.pad(rows.tokens, lacks, "edge"), np.pad(rows.targets, lacks, "edge")
        return Rows(tokens, targets, weights, starts, beside)

    return read_more


def windows(ids: np.ndarray, model: ModelShape, first: int, count: int) -> Rows:
    """Windows [first, first + count) of one long text of token ids [tokens], in their order; after the last one
    comes the first again.

    They start every `model.sequence` tokens, so each target is predicted once in a pass. Raises DataError where the
    text holds no whole window, or an id that the model has no row for.
    """
    length = model.sequence
    whole = (len(ids) - 1) // length if ids.ndim == 1 else 0
    if whole < 1:
        raise DataError(
            f"ids have the shape {ids.shape}; give one row of at least plan.model.sequence + 1 ({length + 1}) tokens"
        )
    starts = np.arange(first, first + count) % whole * length
    tokens = np.stack([np.asarray(ids[start : start + length + 1], np.int64) for start in starts])
    if not 0 <= tokens.min() <= tokens.max() < model.vocabulary:
        raise DataError(
            f"ids reach from {tokens.min()} to {tokens.max()}, and plan.model.vocabulary is {model.vocabulary}: "
            f"they must be 0 to {model.vocabulary - 1}; raise the vocabulary, or use the tokenizer it is of"
        )
    return Rows.of_text(tokens)


class Packing(NamedTuple):
    """Positions of documents that are packed into rows, each [sequences, positions]: where the document of a position
    starts, the position within it, and whether the target belongs to the same document."""

    starts: np.ndarray
    positions: np.ndarray
    counts: np.ndarray


def packing(rows: Rows, end_of_text: int) -> Packing:
    """Return where documents begin and end. Where the rows do not say it, the end-of-text id ends its document.

    After the last token of a document comes the first one of another, which cannot be predicted, so that target does
    not count.
    """
    tokens, first = rows.tokens, rows.starts
    if first is None:
        ends = tokens == end_of_text
        first = np.concatenate([np.ones_like(ends[:, :1]), ends[:, :-1]], axis=1)
    else:
        ends = np.zeros_like(first)  # their weights are 0 already
    numbers = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    starts = np.maximum.accumulate(np.where(first, numbers, 0), axis=1)
    return Packing(starts, numbers - starts, ~ends)


def _saves_work(plan: Plan, counted: int, targets: int) -> bool:
    """Whether the losses of the counted targets alone take notably less work. Programs that are compiled or recorded
    are for one number of them."""
    return 0 < counted <= SPARSE_SHARE * targets and not plan.compiled and not plan.cuda_graphs


def inputs_of(
    plan: Plan, rows: Rows, mesh: Mesh, *, dropout: DropoutKey | None, objective: Objective = NEXT_TOKEN
) -> Inputs:
    """Return the inputs of one micro-batch on one context rank. Distillation takes a teacher's numbers where there are
    some beside the tokens."""
    if plan.compiled:
        dropout = None  # a compiled block is one for what it is given, and this changes at every step
    device, ranks = mesh.device, plan.layout.context
    order = tuple(np.array(plan.positions_of(c)) for c in range(ranks)) if ranks > 1 else ()
    mine = order[mesh.context.index] if order else slice(None)

    def here(x: np.ndarray, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return sent((x if x.ndim == 1 else x.swapaxes(0, 1))[mine], device, dtype)

    wide = torch.float64 if plan.precision.weights == "fp64" else torch.float32
    weights, positions, starts = rows.weights, None, None
    if plan.model.documents == "apart":
        packed = packing(rows, plan.model.end_of_text)
        weights, positions, starts = weights * packed.counts, here(packed.positions), packed.starts.T
    teacher = None
    if isinstance(objective, Distillation) and TEACHER_IDS in rows.beside:
        logs = here(rows.beside[TEACHER_LOGS], wide)
        teacher = Teacher(here(rows.beside[TEACHER_IDS]), logs, objective.temperature, objective.share)
    places = np.flatnonzero(weights.T[mine])
    few = teacher is None and _saves_work(plan, len(places), weights[:, mine].size)
    return Inputs(
        here(rows.tokens),
        here(rows.targets),
        counted=sent(places, device, torch.int64) if few else None,
        weights=here(weights, wide),
        positions=positions,
        sight=Sight(order, starts),
        here=here(np.arange(plan.model.sequence)),
        dropout=dropout,
        teacher=teacher,
    )
