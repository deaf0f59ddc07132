"""Distillation from stored numbers of a teacher is that from all its logits, under every layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chaos.scene import SEED, VOCABULARY, write_tokens
from plans import small
from ranks import on_ranks
from trivium.certify.certificate import _capture, _gradients
from trivium.certify.oracle.layers import embedded, layer, logits_of
from trivium.certify.plain import first_weights, keep_all, order_of
from trivium.certify.reference import weighted_rows
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.objectives.config import ObjectiveConfig
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor.divergence import ROWS, Teacher, Top, distillation
from trivium.plan.plan import Plan
from trivium.training.batches import TEACHER_IDS, TEACHER_LOGS, Read
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.state import save_state
from trivium.training.supervision.job import start
from trivium.training.teacher import write_teacher
from trivium.training.trainer import Samples, Trainer

STUDENT, TEACHER = 7, 8  # seeds of the weights
TEMPERATURE, SHARE = 2.0, 0.3
Expected = tuple[dict[str, float], dict[str, torch.Tensor]]


def objective(top: int, **more: Any) -> Any:
    settings = {"temperature": TEMPERATURE, "share": SHARE, "top": top, **more}
    return ObjectiveConfig(method="distill", settings=settings).made()


def plan_of(**more: Any) -> Plan:
    batch = {"sequences": 4, "micro": 1}
    return small(
        batch=batch, **{"precision": {"weights": "fp64"}, **more, "model": {"layers": 2, **more.get("model", {})}}
    )


def logits_by(seed: int, plan: Plan, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = plan.model
    weights = {name: x.requires_grad_() for name, x in first_weights(model, seed).items()}
    order = order_of(model, tokens)
    x = embedded(weights, model, tokens, order)
    for n in range(model.layers):
        x = layer(weights, model, n, x, order, keep_all)
    return logits_of(weights, model, x), weights


def stored(plan: Plan, top: int) -> Read:
    """Return a reader of rows with what the plain model of the teacher says about them."""
    plain = weighted_rows(plan)

    def rows(first: int, count: int) -> Any:
        found = plain(first, count)
        with torch.no_grad():
            logits, _ = logits_by(TEACHER, plan, torch.from_numpy(found.tokens.copy()))
        logs, ids = (logits / TEMPERATURE).log_softmax(-1).topk(top, -1)
        return found._replace(beside={TEACHER_IDS: ids.numpy().astype(np.int32), TEACHER_LOGS: logs.numpy()})

    return rows


def expected_of(plan: Plan, top: int) -> Expected:
    """Return losses and gradients by autograd through the plain model, from all logits of the teacher."""
    rows = weighted_rows(plan)(0, plan.batch.sequences)
    tokens, targets, counts = (torch.from_numpy(np.array(x)) for x in rows[:3])
    logits, weights = logits_by(STUDENT, plan, tokens)
    theirs = (logits_by(TEACHER, plan, tokens)[0].detach() / TEMPERATURE).softmax(-1)
    ours = (logits / TEMPERATURE).softmax(-1)
    kept = torch.zeros_like(theirs, dtype=torch.bool).scatter_(-1, theirs.topk(top, -1).indices, True)
    each = (theirs * (theirs / ours).log() * kept).sum(-1)
    if top < plan.model.vocabulary:
        p, q = ((x * ~kept).sum(-1) for x in (theirs, ours))
        each = each + p * (p / q).log()
    share = counts.double() / counts.double().sum()
    divergence = (share * each).sum() * TEMPERATURE**2
    nats = -logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    cross_entropy = (share * nats).sum()
    loss = (1 - SHARE) * cross_entropy + SHARE * divergence
    gradients = torch.autograd.grad(loss, list(weights.values()))
    losses = {"loss": loss.item(), "cross_entropy": cross_entropy.item(), "divergence": divergence.item()}
    return losses, dict(zip(weights, gradients, strict=True))


def agrees(plan: Plan, mesh: Mesh, top: int, expected: Expected) -> None:
    trainer = Trainer(plan, mesh, seed=STUDENT, rule=AdamRule(), objective=objective(top))
    captured = _capture(trainer)
    result = trainer.train_step(0, Samples(0, plan.batch.sequences, stored(plan, top)), 1e-3)
    assert dict(result.losses) == pytest.approx(expected[0], rel=1e-10)
    worst = max(_gradients(trainer, captured, expected[1], 1e-4), key=lambda d: d.value)
    assert worst.value < 1e-10, worst


@pytest.mark.parametrize("top", [1, 5, 37])
def test_loss_and_gradients_are_those_of_autograd_and_with_all_tokens_of_the_full_divergence(top: int) -> None:
    plan = plan_of()
    assert plan.model.vocabulary == 37
    agrees(plan, Mesh.single(), top, expected_of(plan, top))


def test_the_teacher_itself_has_no_divergence_and_no_gradient_of_it() -> None:
    plan = plan_of()
    trainer = Trainer(plan, Mesh.single(), seed=TEACHER, rule=AdamRule(), objective=objective(5, share=1.0))
    result = trainer.train_step(0, Samples(0, 4, stored(plan, 5)), 1e-3)
    assert abs(result.loss) < 1e-12 and result.gradient_norm < 1e-12


def on_a_rank(place: Place, plan: Plan, top: int, expected: Expected) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    agrees(plan, mesh, top, expected)
    trainer = Trainer(plan, mesh, seed=TEACHER, rule=AdamRule())
    batch = Samples(0, plan.batch.sequences, weighted_rows(plan))
    found = trainer.likeliest(batch, Top(top, TEMPERATURE))
    own = len(found["top_ids"])
    rows = stored(plan, top)(mesh.at.data * own, own)
    np.testing.assert_array_equal(found["top_ids"], rows.beside[TEACHER_IDS])
    np.testing.assert_allclose(found["top_logs"], rows.beside[TEACHER_LOGS], rtol=1e-10)


@pytest.mark.broad
@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}, {"context": 2}, {"data": 2, "zero": 3}], ids=str)
def test_every_layout_computes_what_one_process_computes(layout: dict[str, Any]) -> None:
    plan = plan_of(**layout)
    on_ranks(2, on_a_rank, plan, 5, expected_of(plan, 5))


def test_a_teacher_reads_the_tokens_once_and_a_training_logs_both_losses(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path)
    model = {"vocabulary": VOCABULARY}
    plan = small(model=model, batch={"sequences": 8})
    teacher = Trainer(small(model={**model, "hidden": 32}), Mesh.single(), seed=3, rule=AdamRule())
    checkpoint = Checkpoint.open(save_state(teacher, tmp_path / "teacher", 0))
    asked = {"method": "distill", "settings": {"top": 16}}
    config = TrainingConfig(steps=3, validation_samples=8, restarts=0, decay="constant", objective=asked)
    job = TrainingJob(plan, config, SEED, tokens, tmp_path / "run")
    with pytest.raises(DataError, match="no teacher has read these tokens"):
        start(job)
    write_teacher(tokens, checkpoint, plan, Mesh.single(), ObjectiveConfig(**asked).made())
    start(job)
    steps = [r for r in read(tmp_path / "run" / METRICS) if "divergence" in r]
    assert [r["step"] for r in steps] == [1, 2, 3]
    for r in steps:
        assert r["loss"] == pytest.approx((r["cross_entropy"] + r["divergence"]) / 2, rel=1e-5) and r["divergence"] > 0
    other = Trainer(small(model=model), Mesh.single(), seed=4, rule=AdamRule())
    again = Checkpoint.open(save_state(other, tmp_path / "other", 0))
    write_teacher(tokens, again, plan, Mesh.single(), ObjectiveConfig(**asked).made())
    with pytest.raises(CheckpointError, match=r"teacher\.json was computed by the weights"):
        start(TrainingJob(plan, config.model_copy(update={"steps": 4}), SEED, tokens, tmp_path / "run"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_losses_keep_the_gradient_of_the_logits_in_their_place_and_nothing_else_of_their_size(
    dtype: torch.dtype,
) -> None:
    T, V, kept = 2 * ROWS + 5, 37, []
    logits = (torch.randn(T, V) @ torch.eye(V, requires_grad=True)).to(dtype).view(T, 1, V)
    logs, ids = torch.randn(T, 1, V).log_softmax(-1).topk(5, -1)

    def note(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        distillation(logits, torch.zeros(T, 1).long(), Teacher(ids.int(), logs, 2.0, 0.3), Mesh.single().tensor, V)
    assert [(x.data_ptr(), x.dtype, x.numel()) for x in kept] == [(logits.data_ptr(), dtype, T * V)]
