"""Losses on their way from stages through a schedule."""

import pytest
import torch
from torch._inductor.exc import InductorError

from trivium.comms.mesh import Mesh
from trivium.errors import MachineError
from trivium.parallel.pipeline.executor import Executor, StageFunctions
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.schedule import Action, Op

SCALE, MICRO_BATCHES = 0.25, 2


def test_any_stage_may_have_losses_and_all_are_differentiated_together() -> None:
    torch.manual_seed(1)
    first, last = torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 1).double()
    rows = [torch.randn(3, 4, dtype=torch.float64) for _ in range(MICRO_BATCHES)]

    def begin(x: torch.Tensor | None, m: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden = first(rows[m])
        return hidden, {"balance": hidden.square().sum()}

    def end(x: torch.Tensor | None, m: int) -> tuple[None, dict[str, torch.Tensor]]:
        y = last(x)
        return None, {"loss": y.sum(), "largest": y.detach().max()}  # the last one is only reported

    executor = Executor(
        mesh=Mesh.single(),
        stages={0: StageFunctions(begin, WeightGradients()), 1: StageFunctions(end, WeightGradients())},
        last_stage=1,
        activation=lambda: pytest.fail("nothing crosses ranks"),
        names=("loss", "balance", "largest", "of another rank"),
        loss_scale=SCALE,
    )
    order = [(Op.FORWARD, 0), (Op.FORWARD, 1), (Op.BACKWARD, 1), (Op.BACKWARD, 0)]
    run = executor.run([Action(op, m, stage) for m in range(MICRO_BATCHES) for op, stage in order])

    parameters = [*first.parameters(), *last.parameters()]
    hidden = first(torch.cat(rows))
    expected = {"loss": last(hidden).sum(), "balance": hidden.square().sum()}
    expected["largest"] = sum(last(h).max() for h in hidden.split(3))
    for name, value in expected.items():
        assert run.losses[name].item() == pytest.approx(SCALE * value.item(), rel=1e-12)
    assert run.losses["of another rank"] == 0
    gradients = torch.autograd.grad(SCALE * (expected["loss"] + expected["balance"]), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-12)


def test_a_failure_of_the_compiler_is_told_shortly_and_with_the_setting_that_avoids_it() -> None:
    def fails(x: torch.Tensor | None, m: int) -> tuple[None, dict[str, torch.Tensor]]:
        raise InductorError(RuntimeError("a program of a thousand lines\n" * 1000), None)

    executor = Executor(
        mesh=Mesh.single(),
        stages={0: StageFunctions(fails, WeightGradients())},
        last_stage=0,
        activation=lambda: pytest.fail("nothing crosses ranks"),
        names=("loss",),
        loss_scale=SCALE,
    )
    with pytest.raises(
        MachineError, match=r"(?s)torch.compile failed at F0.0: RuntimeError.*plan.compiled=false"
    ) as told:
        executor.run([Action(Op.FORWARD, 0, 0)])
    assert len(str(told.value)) < 600
