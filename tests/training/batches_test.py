"""Packed documents do not see each other: their loss is that of the documents apart."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fake_accelerator import accelerator
from plans import small
from trivium.certify.layouts import ROTARY
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.model.inputs import Inputs
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor.vocabulary import vocabulary_loss
from trivium.tokens.rows import Rows
from trivium.training import batches
from trivium.training.batches import inputs_of, packing, windows
from trivium.training.trainer import Samples, Trainer

END = 0


def test_packing_says_where_documents_start_and_restarts_positions() -> None:
    packed = packing(Rows.of_text(np.array([[5, 6, END, 7, END, 8, 9, 4, 4]])), END)
    assert packed.starts.tolist() == [[0, 0, 0, 3, 3, 5, 5, 5]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert packed.counts.tolist() == [[True, True, False, True, False, True, True, True]]


def test_windows_of_a_text_follow_one_another_and_begin_again() -> None:
    model, ids = (small().model, np.arange(26))  # three windows of 8 and the target of the last, and one token more
    rows = windows(ids, model, 2, 3)
    assert rows.tokens.tolist() == [list(range(start, start + 8)) for start in (16, 0, 8)]
    assert rows.targets.tolist() == (rows.tokens + 1).tolist()
    assert windows(ids[:9], model, 5, 1).tokens.tolist() == [list(range(8))]
    for text, law in (
        (ids[:8], "at least plan.model.sequence"),
        (ids - 1, "from -1"),
        (ids + 20, "they must be 0 to 36"),
    ):
        with pytest.raises(DataError, match=law):
            windows(text, model, 0, 3)


def test_weights_are_those_of_the_rows_and_0_where_another_document_begins() -> None:
    rows = Rows(np.full((3, 8), 5), np.full((3, 8), 6), np.arange(24, dtype=np.float32).reshape(3, 8))
    rows.tokens[0, 2] = END
    for documents, wrong in (("joined", []), ("apart", [2])):
        expected = rows.weights.T.copy()
        expected[wrong, 0] = 0
        found = inputs_of(small(model={"documents": documents}), rows, Mesh.single(), dropout=None).weights
        assert found is not None and found.tolist() == expected.tolist()


@pytest.mark.parametrize("model", [{}, {"head": "untied", "z_loss": 0.01}])
def test_losses_of_targets_that_do_not_count_are_left_out_and_change_nothing(
    model: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small(model={"documents": "apart", **model}, precision={"weights": "fp64"})
    draw = np.random.default_rng(3)
    ids = draw.integers(0, plan.model.vocabulary, (16, 9))
    rows = Rows.of_text(ids, (draw.random(ids.shape) < 0.3).astype(np.float32))
    of_head, losses, heads = [], [], vocabulary_loss

    def spied(normed: torch.Tensor, *given: object) -> torch.Tensor:
        of_head[-1] += normed.shape[:-1].numel()
        return heads(normed, *given)

    monkeypatch.setattr("trivium.model.layers.head.vocabulary_loss", spied)
    trainers = []
    for share in (batches.SPARSE_SHARE, 0.0):
        monkeypatch.setattr(batches, "SPARSE_SHARE", share)
        of_head.append(0)
        trainer = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule())
        losses.append(trainer.train_step(0, Samples(0, 16, lambda first, n: rows.part(first, first + n)), 1e-3).losses)
        trainers.append(trainer)
    counted = int(((rows.weights > 0) & (rows.tokens != plan.model.end_of_text)).sum())
    assert of_head == [counted, rows.weights.size]
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    ours, theirs = (dict(trainer.stages[0].named_parameters()) for trainer in trainers)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_loss_of_packed_documents_is_the_loss_of_the_documents_apart(family: str) -> None:
    model = {"documents": "apart", "sequence": 12, **{"gpt": {}, "llama": ROTARY}[family], "hidden": 32}
    plan = small(model=model, batch={"sequences": 2, "micro": 2}, precision={"weights": "fp64"})
    stage = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule()).stages[0]
    documents = [[5, 6, 7, END], [8, END], [9, 10, 11, 12, 13, END]]
    row = np.array([[t for d in documents for t in d] + [3]])
    packed = stage(None, inputs_of(plan, Rows.of_text(row), Mesh.single(), dropout=None))["loss"]
    apart = torch.zeros((), dtype=torch.float64)
    for document in documents:
        tokens = torch.tensor([document]).T
        apart = apart + stage(None, Inputs(tokens[:-1], tokens[1:]))["loss"]
    assert packed.item() == pytest.approx(apart.item(), rel=1e-12)
    joined = plan.model_copy(update={"model": plan.model.model_copy(update={"documents": "joined"})})
    seen = stage(None, inputs_of(joined, Rows.of_text(row), Mesh.single(), dropout=None))["loss"]
    assert seen.item() != pytest.approx(apart.item(), rel=1e-3)


def test_an_accelerator_is_not_asked_for_the_sum_of_weights() -> None:
    """It would have to be through with the update before the next step begins."""
    with accelerator() as seen:
        trainer = SimpleNamespace(mesh=Mesh.single(seen.device), plan=small(), _records=False)
        trainer._sum_of_weights = partial(Trainer._sum_of_weights, trainer)
        inputs = [SimpleNamespace(weights=torch.ones(3, 2, device=seen.device)) for _ in range(2)]
        found = Trainer._scale_of_losses(trainer, inputs)
    assert isinstance(found, torch.Tensor) and found.device == seen.device and not seen.waits


def test_a_batch_of_which_no_token_counts_has_loss_0_and_teaches_nothing() -> None:
    model = {"documents": "apart", "sequence": 1}
    plan = small(model=model, batch={"sequences": 2, "micro": 2}, precision={"weights": "fp64"})
    trainer = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule())
    rows = Rows.of_text(np.full((2, 2), END))
    result = trainer.train_step(0, Samples(0, 2, lambda first, count: rows), 1e-3)
    assert (result.loss, result.gradient_norm) == (0.0, 0.0)


def test_loss_of_a_batch_is_the_mean_over_its_weights_however_small_their_sum() -> None:
    plan = small(batch={"sequences": 2, "micro": 1}, precision={"weights": "fp64"})
    numbers, found = np.arange(18).reshape(2, 9), []
    for weight in (0.25, 1.0, 8.0):
        weights = np.zeros((2, 9), np.float32)
        weights[1, 3] = weight
        rows = Rows.of_text(numbers, weights)
        trainer = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule())
        result = trainer.train_step(
            0, Samples(0, 2, lambda first, count, rows=rows: rows.part(first, first + count)), 0.0
        )
        found.append((result.loss, result.gradient_norm))
    assert found[0][0] > 1 and found[1:] == [pytest.approx(found[0], rel=1e-6)] * 2
