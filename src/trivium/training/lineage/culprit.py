"""Finds what made a step spike: the micro-batch, the sequence and the document, and the first module that shows it.

Each level is searched by computing its parts separately. Together they cost what the step costs, and unlike bisection
this finds parts that are each bad alone, and parts that are bad only together.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trivium.finite import finite_or_text
from trivium.kernels.dropout import DropoutKey
from trivium.kernels.sight import Sight
from trivium.model.inputs import Inputs
from trivium.model.stage import Stage
from trivium.objectives.objective import LOSS as CROSS_ENTROPY
from trivium.parallel.tensor.weight_gradients import BY_AUTOGRAD
from trivium.progress import Progress, silent
from trivium.training.batches import inputs_of
from trivium.training.lineage.replay import Replay, finite, replay_to
from trivium.training.record import Record
from trivium.training.trainer import Samples, StepResult

Tensor = torch.Tensor
MAX_ROWS_SEARCHED = 8  # for their documents
MAX_LOSS_DIFFERENCE = 1e-2  # relative, of a finite replay that counts as the logged step
LOSS = "the loss"  # as the place, if every module's output is finite


class Strength(NamedTuple):
    """A part of the batch computed separately: its loss per position, and the norm of its gradient."""

    loss: float
    gradient_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Place(NamedTuple):
    """A module by its name, and "forward", "backward" or "weight gradient"."""

    module: str
    way: str


def find_culprit(record: Record, step: int, progress: Progress = silent) -> dict[str, Any]:
    """Replay a step (counted from 1) and return what `trivium data show --culprit` prints.

    Of a finite spike, the row that stands out most is blamed, by loss or gradient norm, whichever spiked.
    """
    replay = replay_to(record, step, progress)
    before = bad_weights(replay.trainer.stages[0])
    samples = replay.samples(step - 1)
    scale = replay.trainer.loss_scale.value if replay.trainer.loss_scale else 1.0
    result = replay.advance(update=False)
    event = replay.event or record.logged_of(step)
    logged = {name: event.get(name) for name in ("loss", "gradient_norm")}
    cause = replay.event.get("cause") or replay.spikes.cause
    reproduced, bad = _reproduced(result, logged), not finite(result)
    search = _Search(replay, step - 1, samples, scale, _Worst(bad, "gradient" in cause))
    micro_batches, rows = search.rows(progress) if reproduced else ([], [])
    every_row = bad and len(rows) == samples.sequences
    place = search.place(rows[0]) if bad and rows else None
    return {
        "step": step,
        "replayed_from": replay.started_from,
        "spiked": bad or bool(cause),
        "cause": cause or "no cause: loss and gradient norm are as in other steps",
        "loss": finite_or_text(result.loss),
        "gradient_norm": finite_or_text(result.gradient_norm),
        "logged": logged,
        "reproduced": reproduced,
        "weights": before,
        "micro_batches": micro_batches,
        "rows": rows,
        "every_row": every_row,
        "culprits": [] if every_row else [search.blame(row) for row in rows[:MAX_ROWS_SEARCHED]],
        "layer": place.module if place else None,
        "pass": place.way if place else None,
    }


def _reproduced(result: StepResult, logged: Mapping[str, Any]) -> bool:
    """Whether the replay is the step that was logged: both not finite, or nearly the same loss."""
    values = [float("nan") if value is None else float(value) for value in logged.values()]
    if not all(map(math.isfinite, values)):
        return not finite(result)
    return finite(result) and math.isclose(result.loss, values[0], rel_tol=MAX_LOSS_DIFFERENCE)


class _Worst(NamedTuple):
    """Chooses all parts that are not finite, or of a finite spike the part that stands out most."""

    bad: bool  # the step is not finite
    by_gradient: bool

    def of(self, strengths: Mapping[int, Strength]) -> list[int]:
        if self.bad:
            return [n for n, strength in strengths.items() if not strength.finite]
        return [max(strengths, key=lambda n: strengths[n][int(self.by_gradient)])]


class _Search:
    """The parts of one batch, each computed separately with the weights before the step."""

    def __init__(self, replay: Replay, step: int, samples: Samples, scale: float, worst: _Worst) -> None:
        """step: counted from 0. scale: the loss scale of the step."""
        self.replay, self.step, self.samples, self.worst = replay, step, samples, worst
        self.plan, self.mesh = replay.trainer.plan, replay.trainer.mesh
        self.stage: Stage = replay.trainer.stages[0]
        self.stage.eval()  # no recomputation; dropout is that of the step, by its key
        # Autograd returns no gradient of a weight whose products are added to those of a step.
        self.stage.weight_gradients.sums = BY_AUTOGRAD
        self.batch = samples.read(samples.first, samples.sequences)
        # The scale of the step, because in fp16 a gradient may overflow only under that.
        weights = self.inputs(0, samples.sequences).weights
        assert weights is not None, "every target has a weight"
        self.scale = scale / (float(weights.sum(dtype=torch.float64)) or 1.0)

    def rows(self, progress: Progress) -> tuple[list[int], list[int]]:
        """Return the micro-batches and the rows to blame."""
        micro = self.plan.batch.micro
        of_micro: dict[int, Strength] = {}
        for start in range(0, self.samples.sequences, micro):
            of_micro[start] = self.strength(self.inputs(start, start + micro))
            progress(start, self.samples.sequences, "micro-batches")
        chosen = self.worst.of(of_micro)
        rows = [row for start in chosen for row in range(start, start + micro)]
        of_row = {row: self.strength(self.inputs(row, row + 1)) for row in rows}
        return [start // micro for start in chosen], self.worst.of(of_row)

    def blame(self, row: int) -> dict[str, Any]:
        """Return the document of a row to blame, if there is a single one."""
        sample, data = self.samples.first + row, self.replay.data
        spans = [s for s in data.documents_of(sample) if s.offset < data.sequence]
        whole = self.inputs(row, row + 1)
        ends = [min(s.offset + s.length, data.sequence) for s in spans]  # the last token is only a target
        chosen = [0]
        if len(spans) > 1:
            parts = enumerate(zip(spans, ends, strict=True))
            chosen = self.worst.of({n: self.strength(_part(whole, s.offset, end)) for n, (s, end) in parts})
        if self.worst.bad and not chosen:  # bad only together: the document that completes it
            first = next((n for n, end in enumerate(ends) if not self.strength(_part(whole, 0, end)).finite), None)
            chosen = [] if first is None else [first]
        culprit = spans[chosen[0]] if len(chosen) == 1 else None
        return {
            "row": row,
            "sample": sample,
            "micro_batch": row // self.plan.batch.micro,
            "source": data.where(sample).source,
            "document": culprit.document if culprit else None,
            "positions": [culprit.offset, culprit.offset + culprit.length] if culprit else [0, data.sequence + 1],
            "from_its_token": culprit.begin if culprit else None,
            "documents": [s.document for s in spans],
        }

    def place(self, row: int) -> Place | None:
        """Return where the first value that is not finite appears when a row is computed alone."""
        trail = Trail()
        with trail.watching(self.stage):
            strength = self.strength(self.inputs(row, row + 1), trail)
        return trail.found if not strength.finite else None

    def inputs(self, first: int, stop: int) -> Inputs:
        """Return rows [first, stop) as a micro-batch of this step."""
        part = self.batch.part(first, stop)
        samples = tuple(self.samples.first + row for row in range(first, stop))
        key = DropoutKey(self.replay.record.seed, self.step, samples, self.plan.model.sequence)
        return inputs_of(self.plan, part, self.mesh, dropout=key)

    def strength(self, inputs: Inputs, trail: "Trail | None" = None) -> Strength:
        """Return loss and gradient norm of a part, with the weights before the step."""
        parameters = {name: p for name, p in self.stage.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            loss = self.stage(None, inputs)[CROSS_ENTROPY] * self.scale
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        squares = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for name, grad in zip(parameters, grads, strict=True):
            square = grad.double().square().sum() if grad is not None else 0.0
            squares += square
            if trail is not None and trail.found is None and not math.isfinite(square):
                trail.found = Place(name.rpartition(".")[0], "weight gradient")
        positions = inputs.shape[0] * inputs.shape[1]
        return Strength(float(loss.detach()) / (self.scale * positions), math.sqrt(float(squares)) / self.scale)


def _part(whole: Inputs, start: int, stop: int) -> Inputs:
    """Return positions [start, stop) of a row, with their position numbers."""
    cut: Callable[[Any], Any] = lambda x: None if x is None else x[start:stop]  # noqa: E731
    starts = whole.seen.starts
    return replace(
        whole,
        tokens=cut(whole.tokens),
        targets=cut(whole.targets),
        weights=cut(whole.weights),
        positions=cut(whole.positions),
        sight=Sight((), None if starts is None else np.maximum(starts[start:stop] - start, 0)),
        here=whole.order[start:stop],
    )


def bad_weights(stage: nn.Module) -> list[str]:
    """Return the names of the parameters with values that are not finite."""
    return [name for name, p in stage.named_parameters() if not bool(torch.isfinite(p).all())]


class Trail:
    """Watches one forward and one backward pass of a stage. found: where a value that is not finite appeared first."""

    def __init__(self) -> None:
        self.found: Place | None = None
        self._running: list[str] = []  # modules, the innermost last
        # By id of a tensor: what ran around the modules that returned it, and the modules that it was passed to.
        self._roles: dict[int, tuple[list[str], list[str]]] = {}
        self._kept: list[Tensor] = []  # so that no id is reused

    @contextmanager
    def watching(self, stage: nn.Module) -> Iterator[None]:
        """Watch every module of the stage inside this context."""
        handles = []
        for name, module in stage.named_modules():
            if name and not isinstance(module, nn.ModuleDict):
                handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
                handles.append(module.register_forward_hook(partial(self._leave, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, module: nn.Module, args: tuple[object, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            # An input that is not finite, though no module returned it so, was computed between modules.
            self._see(args[0], Place(self._around(name), "forward"))
            self._role(args[0])[1].append(name)
        self._running.append(name)

    def _leave(self, name: str, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._running.pop()
        for x in output.values() if isinstance(output, dict) else (output,):
            if isinstance(x, Tensor):
                self._see(x, Place(name, "forward"))
                self._role(x)[0].append(self._around(name))

    def _see(self, x: Tensor, place: Place) -> None:
        if self.found is None and not bool(torch.isfinite(x).all()):
            self.found = place

    def _role(self, x: Tensor) -> tuple[list[str], list[str]]:
        if id(x) not in self._roles:
            self._roles[id(x)] = [], []
            self._kept.append(x)
            if x.requires_grad:
                x.register_hook(partial(self._see_gradient, id(x)))
        return self._roles[id(x)]

    def _see_gradient(self, key: int, grad: Tensor) -> None:
        around, into = self._roles[key]
        # The gradient of a module's input is computed by the module; that of its output, by what runs around it.
        self._see(grad, Place(into[-1] if into else around[-1], "backward"))

    def _around(self, name: str) -> str:
        """Return what calls a module: the innermost running one, or the layer itself if none calls it."""
        if self._running:
            return self._running[-1]
        return name if name.startswith("layers.") else LOSS
