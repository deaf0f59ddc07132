"""Packed documents do not see each other: their loss is that of the documents apart."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fake_accelerator import accelerator
from plans import small
from trivium.model.inputs import Inputs
from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.training.batches import Rows, inputs_of, packing
from trivium.training.trainer import Samples, Trainer

END = 0


def test_packing_says_where_documents_start_and_restarts_positions() -> None:
    packed = packing(np.array([[5, 6, END, 7, END, 8, 9, 4]]), END)
    assert packed.starts.tolist() == [[0, 0, 0, 3, 3, 5, 5, 5]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert packed.counts.tolist() == [[True, True, False, True, False, True, True, True]]


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_loss_of_packed_documents_is_the_loss_of_the_documents_apart(family: str) -> None:
    model = {"documents": "apart", "sequence": 12, "family": family, "hidden": 32}
    plan = small(model=model, batch={"sequences": 2, "micro": 2}, precision={"weights": "fp64"})
    stage = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule()).stages[0]
    documents = [[5, 6, 7, END], [8, END], [9, 10, 11, 12, 13, END]]
    row = np.array([[t for d in documents for t in d] + [3]])
    packed = stage(None, inputs_of(plan, Rows(row[:, :-1], row[:, 1:]), Mesh.single(), dropout=None))
    apart = torch.zeros((), dtype=torch.float64)
    for document in documents:
        tokens = torch.tensor([document]).T
        apart = apart + stage(None, Inputs(tokens[:-1], tokens[1:]))
    assert packed.item() == pytest.approx(apart.item(), rel=1e-12)
    joined = plan.model_copy(update={"model": plan.model.model_copy(update={"documents": "joined"})})
    seen = stage(None, inputs_of(joined, Rows(row[:, :-1], row[:, 1:]), Mesh.single(), dropout=None))
    assert seen.item() != pytest.approx(apart.item(), rel=1e-3)


def test_an_accelerator_is_not_asked_how_many_tokens_count() -> None:
    """It would have to be through with the update before the next step begins."""
    with accelerator() as seen:
        here = SimpleNamespace(mesh=Mesh.single(seen.device), plan=small(model={"documents": "apart"}))
        inputs = [SimpleNamespace(weights=torch.ones(3, 2, device=seen.device)) for _ in range(2)]
        samples = Samples(0, 4, lambda first, count: pytest.fail("nothing is read"))
        found = Trainer._tokens_that_count(here, samples, inputs)  # type: ignore[arg-type]
    assert isinstance(found, torch.Tensor) and found.device == seen.device and not seen.waits


def test_a_batch_of_which_no_token_counts_has_loss_0_and_teaches_nothing() -> None:
    model = {"documents": "apart", "sequence": 1}
    plan = small(model=model, batch={"sequences": 2, "micro": 2}, precision={"weights": "fp64"})
    trainer = Trainer(plan, Mesh.single(), seed=2, rule=AdamRule())
    rows = Rows(np.full((2, 1), END), np.full((2, 1), 5))
    result = trainer.train_step(0, Samples(0, 2, lambda first, count: rows), 1e-3)
    assert (result.loss, result.gradient_norm) == (0.0, 0.0)
