"""What made a step spike: the micro-batch, the sequence, the document; and the layer where it shows first.

Each level is searched by doing its parts alone: together they cost what the step costs, and unlike halving, this
finds parts that are bad each for itself and parts that are bad only together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from trivium.finite import finite_or_text
from trivium.kernels.dropout import DropoutKey
from trivium.kernels.sight import Sight
from trivium.model.inputs import Inputs
from trivium.model.stage import Stage
from trivium.objectives.objective import LOSS
from trivium.parallel.tensor.weight_gradients import BY_AUTOGRAD
from trivium.progress import Progress, silent
from trivium.tokens.lineage import Span
from trivium.training.batches import inputs_of
from trivium.training.lineage.first_bad import Place, Trail, bad_weights
from trivium.training.lineage.replay import Replay, finite, replay_to
from trivium.training.record import Record
from trivium.training.trainer import Samples, StepResult

SHOWN = 8  # rows to blame that are looked into
REPRODUCED = 1e-2  # relative difference of the loss up to which a finite replay is the logged step


class Strength(NamedTuple):
    """Of a part of the batch done alone: its loss per position, and the norm of its gradient."""

    loss: float
    gradient_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def find_culprit(record: Record, step: int, progress: Progress = silent) -> dict[str, Any]:
    """Replay a step (counted from 1) and blame: see `trivium data culprit`.

    Of a finite spike, the rows that stand out most are blamed, by the total that spiked.
    """
    replay = replay_to(record, step, progress)
    before = bad_weights(replay.trainer.stages[0])
    samples = replay.samples(step - 1)
    scale = replay.trainer.loss_scale.value if replay.trainer.loss_scale else 1.0
    result = replay.advance(update=False)
    logged = _logged(replay, step)
    reproduced, bad = _reproduced(result, logged), not finite(result)
    search = _Search(replay, step - 1, samples, scale)
    by_gradient = "gradient" in replay.event.get("cause", replay.spikes.cause)
    micro_batches, rows = search.rows(bad, by_gradient, progress) if reproduced else ([], [])
    everywhere = bad and len(rows) == samples.sequences
    looked = [] if everywhere else rows[:SHOWN]
    place = search.place(rows[0]) if bad and rows else None
    cause = replay.event.get("cause") or replay.spikes.cause
    return {
        "step": step,
        "replayed_from": replay.started_from,
        "spiked": bad or bool(cause),
        "cause": cause or "nothing: the step is as any other",
        "loss": finite_or_text(result.loss),
        "gradient_norm": finite_or_text(result.gradient_norm),
        "logged": logged,
        "reproduced": reproduced,
        "weights": before,
        "micro_batches": micro_batches,
        "rows": rows,
        "every_row": everywhere,
        "culprits": [search.blame(row, bad, by_gradient) for row in looked],
        "layer": place.module if place else None,
        "pass": place.way if place else None,
    }


class _Search:
    """The parts of one batch, done alone on the weights before the step."""

    def __init__(self, replay: Replay, step: int, samples: Samples, scale: float) -> None:
        """scale: the loss scale of the step."""
        self.replay, self.step, self.samples = replay, step, samples
        self.plan, self.mesh = replay.trainer.plan, replay.trainer.mesh
        self.stage: Stage = replay.trainer.stages[0]
        self.stage.eval()  # nothing is recomputed; dropout is the step's own, by its key
        # Gradients are asked of autograd, which has none of a weight whose products go into the sum of a step.
        self.stage.weight_gradients.sums = BY_AUTOGRAD
        self.batch = samples.read(samples.first, samples.sequences)
        # As the step scales it: in fp16 a gradient may overflow only so.
        weights = self.inputs(range(samples.sequences)).weights
        assert weights is not None, "every target has a weight"
        self.scale = scale / (float(weights.sum(dtype=torch.float64)) or 1.0)

    def rows(self, bad: bool, by_gradient: bool, progress: Progress) -> tuple[list[int], list[int]]:
        """The micro-batches and the rows to blame, the worst first."""
        micro = self.plan.batch.micro
        starts = range(0, self.samples.sequences, micro)
        of_micro: dict[int, Strength] = {}
        for start in starts:
            of_micro[start] = self.strength(self.inputs(range(start, start + micro)))
            progress(start, self.samples.sequences, "micro-batches")
        chosen = _worst(of_micro, bad, by_gradient)
        of_row = {
            row: self.strength(self.inputs(range(row, row + 1)))
            for start in chosen
            for row in range(start, start + micro)
        }
        return [start // micro for start in chosen], _worst(of_row, bad, by_gradient)

    def blame(self, row: int, bad: bool, by_gradient: bool) -> dict[str, Any]:
        """The document of a row to blame, where one is."""
        sample, data = self.samples.first + row, self.replay.data
        spans = [s for s in data.documents_of(sample) if s.offset < data.sequence]
        whole = self.inputs(range(row, row + 1))
        alone = {n: self.strength(_part(whole, s.offset, _end(s, data.sequence))) for n, s in enumerate(spans)}
        chosen = _worst(alone, bad, by_gradient) if len(spans) > 1 else [0]
        if bad and not chosen:  # bad only together: the document that completes it
            chosen = self._completing(whole, spans)
        found = spans[chosen[0]] if len(chosen) == 1 else None
        where = data.where(sample)
        return {
            "row": row,
            "sample": sample,
            "micro_batch": row // self.plan.batch.micro,
            "source": where.source,
            "document": found.document if found else None,
            "positions": [found.offset, found.offset + found.length] if found else [0, data.sequence + 1],
            "from_its_token": found.begin if found else None,
            "documents": [s.document for s in spans],
        }

    def _completing(self, whole: Inputs, spans: Sequence[Span]) -> list[int]:
        for number, span in enumerate(spans):
            if not self.strength(_part(whole, 0, _end(span, whole.shape[0]))).finite:
                return [number]
        return []

    def place(self, row: int) -> Place | None:
        """Where the first value that is not finite appears when a row is done alone."""
        trail = Trail()
        with trail.watching(self.stage):
            strength = self.strength(self.inputs(range(row, row + 1)), trail)
        return trail.found if not strength.finite else None

    def inputs(self, rows: range) -> Inputs:
        """Some rows as a micro-batch of this step."""
        part = self.batch.part(rows.start, rows.stop)
        numbers = tuple(self.samples.first + row for row in rows)
        key = DropoutKey(self.replay.record.seed, self.step, numbers, self.plan.model.sequence)
        return inputs_of(self.plan, part, self.mesh, dropout=key)

    def strength(self, inputs: Inputs, trail: Trail | None = None) -> Strength:
        """Loss and gradient of a part alone, with the weights of the step."""
        parameters = {name: p for name, p in self.stage.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            loss = self.stage(None, inputs)[LOSS] * self.scale
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        squares = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for name, grad in zip(parameters, grads, strict=True):
            if grad is None:
                continue
            square = grad.double().square().sum()
            squares += square
            if trail is not None and trail.found is None and not bool(torch.isfinite(square)):
                trail.found = Place(name.rpartition(".")[0], "weight gradient")
        positions = inputs.shape[0] * inputs.shape[1]
        return Strength(float(loss.detach()) / (self.scale * positions), math.sqrt(float(squares)) / self.scale)


def _worst(strengths: Mapping[int, Strength], bad: bool, by_gradient: bool) -> list[int]:
    """All that are not finite; of a finite spike the one that stands out most."""
    if bad:
        return [n for n, strength in strengths.items() if not strength.finite]
    measure: Callable[[int], float] = lambda n: strengths[n][int(by_gradient)]  # noqa: E731
    return [max(strengths, key=measure)]


def _part(whole: Inputs, start: int, stop: int) -> Inputs:
    """Positions [start, stop) of a row, with the numbers they have in it."""
    here = whole.order[start:stop]
    starts = whole.seen.starts
    return replace(
        whole,
        tokens=whole.tokens[start:stop],
        targets=None if whole.targets is None else whole.targets[start:stop],
        weights=None if whole.weights is None else whole.weights[start:stop],
        positions=None if whole.positions is None else whole.positions[start:stop],
        sight=Sight((), None if starts is None else np.maximum(starts[start:stop] - start, 0)),
        here=here,
    )


def _end(span: Span, sequence: int) -> int:
    return min(span.offset + span.length, sequence)  # the last token is only a target


def _logged(replay: Replay, step: int) -> dict[str, Any]:
    """The totals that the run logged."""
    logged = replay.event or replay.record.logged_of(step)
    return {name: logged.get(name) for name in ("loss", "gradient_norm")}


def _reproduced(result: StepResult, logged: Mapping[str, Any]) -> bool:
    """Whether the replay is the step that was logged: both not finite, or nearly the same loss."""
    values = [float("nan") if value is None else float(value) for value in logged.values()]
    if not all(map(math.isfinite, values)):
        return not finite(result)
    return finite(result) and math.isclose(result.loss, values[0], rel_tol=REPRODUCED)
