"""Execute a program on this pipeline rank. No schedule is known here by name."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trivium.comms.mesh import Mesh
from trivium.comms.transfers import InOrder, PostedAhead, Results, Transport
from trivium.errors import MachineError, TriviumError
from trivium.parallel.pipeline.clock import Clock
from trivium.parallel.pipeline.saved_bytes import Counted, SavedBytes
from trivium.parallel.sharding.buckets import GradientWatch
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.schedule import Action, Op, forward, inputs
from trivium.plan.transfers import Event, Transfer

Tensor = torch.Tensor
MAX_COMPILER_CHARACTERS = 300  # of a compiler's message, which may repeat a whole program
CUT_SHORT = "; torch.compile was killed while it wrote that file: delete it, and start again"


class Span(NamedTuple):
    """Start and end of an event in seconds since the start of the program."""

    event: Event
    start: float
    end: float


@dataclass
class Run:
    """Results of a program: this rank's shares of the losses by name, and a trace."""

    losses: dict[str, Tensor]
    spans: list[Span] = field(default_factory=list)
    peak_held: int = 0  # most stage activations held at once
    peak_saved_bytes: int = 0  # most bytes kept for backward at once, when measured
    peak_host_bytes: int = 0  # most bytes of activations on the host at once, when measured
    peak_returned_bytes: int = 0  # most bytes of these on the device at once


class StageFunctions(NamedTuple):
    """The functions of one stage.

    forward(x or None, micro-batch number) -> hidden states, or None from the last stage, and losses by name, which any
    stage may have. The sum of the losses is differentiated; a loss without a graph is only reported.
    """

    forward: Callable[[Tensor | None, int], tuple[Tensor | None, Mapping[str, Tensor]]]
    weight_gradients: WeightGradients


@dataclass
class Executor:
    """Runs the events of one rank in order.

    activation: returns an empty tensor of the shape that is sent between stages. names: of all losses. loss_scale:
    multiplies the losses of each micro-batch, so that gradients add up to the mean's. `watch` is notified when the last
    backward of a stage in the step begins, so that gradient reduction can start inside it.
    """

    mesh: Mesh
    stages: Mapping[int, StageFunctions]
    last_stage: int
    activation: Callable[[], Tensor]
    names: Sequence[str]
    loss_scale: float | Tensor = 1.0
    watch: GradientWatch | None = None
    saved_bytes: SavedBytes | None = None  # measures what is kept for backward
    clock: Clock = field(default_factory=Clock)  # clock of the spans
    transport: Literal["posted", "in order"] | None = None  # None: posted on gloo, in order elsewhere
    around: Callable[[str], AbstractContextManager[Any]] | None = None  # each event, by its name: for a trace

    def run(self, program: Sequence[Event]) -> Run:
        """One pass over the program; gradients accumulate in the stages' parameters."""
        self._run = Run({n: torch.zeros((), device=self.mesh.device, dtype=torch.float64) for n in self.names})
        self._results = Results()
        self._saved: dict[tuple[int, int], tuple[list[Tensor], list[GradientEdge]]] = {}
        self._trains = any(isinstance(e, Action) and e.op is not Op.FORWARD for e in program)
        self._remaining = Counter((e.op, e.stage) for e in program if isinstance(e, Action))
        self._held: dict[tuple[int, int], int] = {}  # bytes kept for backward
        for number, stage in self.stages.items():
            stage.weight_gradients.separate = (Op.WEIGHT_GRADIENT, number) in self._remaining
        group = self.mesh.pipeline
        posts = group.size > 1 and group.transport.posts_ahead if self.transport is None else self.transport == "posted"
        transport = (PostedAhead if posts else InOrder)(program, self.mesh, self.activation)
        perform = self._perform if self.around is None else partial(self._perform_named, self.around)
        self.clock.mark()
        for event in program:
            transport.before(event)
            try:
                self._wait_for_inputs(event)
                self.clock.mark()  # a span is work: waiting for a neighbour is the gap before it
                perform(event, transport)
            except TriviumError:
                raise
            except Exception as error:
                where = f"rank {self.mesh.rank} {self.mesh.at._asdict()}"
                left = CUT_SHORT if "file too short" in str(error) else ""
                if _is_of_compiler(error) and not left:
                    raise MachineError(
                        f"{where}: torch.compile failed at {event}: {str(error)[:MAX_COMPILER_CHARACTERS]} …; set "
                        f"plan.compiled=false, which computes the same without it"
                    ) from error
                raise TriviumError(f"{where} failed at {event}: {type(error).__name__}: {error}{left}") from error
            self.clock.mark()
        transport.finish()
        _, *marks = self.clock.seconds()
        self._run.spans = [Span(*each) for each in zip(program, marks[::2], marks[1::2], strict=True)]
        return self._run

    def _wait_for_inputs(self, event: Event) -> None:
        if isinstance(event, Action):
            for needed in inputs(event, self.last_stage, split=event.op is Op.INPUT_GRADIENT):
                self._results.wait(needed)

    def _perform_named(
        self, around: Callable[[str], AbstractContextManager[Any]], event: Event, transport: Transport
    ) -> None:
        with around(str(event)):
            self._perform(event, transport)

    def _perform(self, event: Event, transport: Transport) -> None:
        match event:
            case Transfer():
                transport.carry(event, self._results)
            case Action(Op.FORWARD, m, stage):
                self._forward(event, m, stage)
            case Action(Op.BACKWARD, m, stage):
                self._backward(event, m, stage)
                del self._held[m, stage]
            case Action(Op.INPUT_GRADIENT, m, stage):
                with self.stages[stage].weight_gradients.put_off((m, stage)):
                    self._backward(event, m, stage)
            case Action(Op.WEIGHT_GRADIENT, m, stage):
                self._finish_weights(event, m, stage)
                del self._held[m, stage]

    def _forward(self, event: Action, m: int, stage: int) -> None:
        x = None if stage == 0 else self._results.pop(forward(m, stage - 1))
        gradient: list[Tensor] = []
        if x is not None and self._trains:
            x = _Entered.apply(gradient, torch.empty((), requires_grad=True), x)
        with torch.set_grad_enabled(self._trains), self._counting() as counted:
            hidden, losses = self.stages[stage].forward(x, m)
        outputs = []
        if hidden is not None:
            self._results.put(event, hidden.detach())
            outputs.append(hidden)
        if losses:
            scaled = {name: loss * self.loss_scale for name, loss in losses.items()}
            for name, loss in scaled.items():
                self._run.losses[name] += loss.detach()
            outputs.append(reduce(torch.add, scaled.values()))
        if self._trains:
            # The places of outputs in autograd's graph, not the outputs: these are free once they were sent.
            self._saved[m, stage] = gradient, [get_gradient_edge(y) for y in outputs]
            self._held[m, stage] = counted.bytes
            self._run.peak_held = max(self._run.peak_held, len(self._held))
            self._run.peak_saved_bytes = max(self._run.peak_saved_bytes, sum(self._held.values()))

    def _backward(self, event: Action, m: int, stage: int) -> None:
        if self._is_last(event) and self.watch is not None:
            self.watch.last_backward(stage)
        gradient, outputs = self._saved.pop((m, stage))
        grads = [] if stage == self.last_stage else [self._results.pop(event._replace(stage=stage + 1))]
        torch.autograd.backward(outputs, [*grads, *[None] * (len(outputs) - len(grads))])
        if stage > 0:
            assert gradient, f"the backward of {event} left no gradient for its input"
            self._results.put(event, gradient.pop())

    def _finish_weights(self, event: Action, m: int, stage: int) -> None:
        if self._is_last(event) and self.watch is not None:
            self.watch.last_backward(stage, put_off=True)
        added = self.watch.finished if self.watch is not None else _nobody
        self.stages[stage].weight_gradients.finish((m, stage), added)

    def _is_last(self, event: Action) -> bool:
        self._remaining[event.op, event.stage] -= 1
        return self._remaining[event.op, event.stage] == 0

    def _counting(self) -> AbstractContextManager[Counted]:
        return nullcontext(Counted()) if self.saved_bytes is None else self.saved_bytes.counting()


class _Entered(torch.autograd.Function):
    """The identity on the previous stage's output. Its backward appends the gradient to a list, so that the tensor
    can be freed before."""

    @staticmethod
    def forward(ctx: Any, gradient: list[Tensor], leaf: Tensor, x: Tensor) -> Tensor:
        ctx.gradient = gradient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.gradient.append(grads[0].contiguous())
        return None, None, None


def _nobody(parameter: torch.nn.Parameter) -> None:
    """Ignore a finished gradient."""


def _is_of_compiler(error: Exception) -> bool:
    """Return whether torch.compile raised the error, without importing it."""
    return any(kind.__module__ == "torch._dynamo.exc" for kind in type(error).__mro__)
