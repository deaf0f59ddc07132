"""The losses of preferences, their gradients and their rewards are those of trl."""

import importlib
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trivium.comms.mesh import Mesh
from trivium.objectives.config import ObjectiveConfig
from trivium.objectives.preferences.losses import Pairs, Side
from trivium.tokens.rows import Rows
from trivium.training.pairs import REFERENCE, weighed

THEIRS = {"dpo": "sigmoid", "hinge": "hinge", "ipo": "ipo", "robust": "robust"}
PAIRS, LENGTH = 5, 12


def by_trl(
    method: str, ours: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor
) -> tuple[Any, dict[str, float]]:
    """Return loss and metrics of the trainer's own function, given the log-probabilities [2 pairs, tokens]."""
    pytest.importorskip("trl", reason="trl is not installed")
    trainer = importlib.import_module("trl.trainer.dpo_trainer").DPOTrainer
    same = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    metrics: dict[str, list[float]] = defaultdict(list)
    settings = {"aux_loss_enabled": False, "ld_alpha": None, "precompute_ref_logps": True, "use_weighting": False}
    settings |= {"f_divergence_type": "reverse_kl", "loss_types": [THEIRS[method]], "loss_weights": [1.0]}
    settings |= {"beta": 0.3, "label_smoothing": 0.1, "_total_train_tokens": 0, "_tp_size": 1}
    stub = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=same, _metrics={"train": metrics}, **settings
    )
    zeros = torch.zeros_like(ours)
    outputs = SimpleNamespace(log_probs=ours * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    whole = torch.cat([torch.zeros(len(mask), 1), mask], 1).long()
    sums = (reference * mask).sum(1)
    inputs = {"input_ids": whole, "attention_mask": torch.ones_like(whole), "completion_mask": whole}
    inputs |= {"ref_chosen_logps": sums[:PAIRS], "ref_rejected_logps": sums[PAIRS:]}
    loss = trainer._compute_loss(stub, lambda **_: outputs, inputs, False)
    return loss, {name: values[-1] for name, values in metrics.items()}


@pytest.mark.broad  # the import of trl takes seconds
@pytest.mark.parametrize("method", THEIRS)
def test_loss_gradient_and_rewards_are_trls(method: str) -> None:
    generator = torch.Generator().manual_seed(3)
    ours, reference = (-3 * torch.rand(2 * PAIRS, LENGTH, generator=generator, dtype=torch.float64) for _ in range(2))
    begins, ends = (torch.randint(*span, (2 * PAIRS, 1), generator=generator) for span in ((1, 5), (6, LENGTH)))
    mask = ((torch.arange(LENGTH) >= begins) & (torch.arange(LENGTH) < ends)).double()
    leaf = ours.clone().requires_grad_()
    loss, metrics = by_trl(method, leaf, reference, mask)
    (gradient,) = torch.autograd.grad(loss, leaf)

    def rows_of(x: torch.Tensor) -> np.ndarray:
        return torch.cat([x[:PAIRS], x[PAIRS:]], 1).numpy()

    codes = rows_of(torch.cat([mask[:PAIRS], 2 * mask[PAIRS:]]))
    ids = np.zeros(codes.shape, np.int64)
    settings = {"beta": 0.3, **({"smoothing": 0.1} if method == "robust" else {})}
    objective: Any = ObjectiveConfig(method=method, settings=settings).made()
    rows = Rows(ids, ids, codes, beside={REFERENCE: rows_of(reference)})
    found = weighed(objective, rows, range(PAIRS), rows_of(ours), Mesh.single())
    assert found.losses["loss"] / found.pairs == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(-found.rows.weights / found.pairs, rows_of(gradient), rtol=1e-12, atol=1e-15)
    if method != "ipo":  # whose reward here is averaged over tokens, as its loss is
        for name, theirs in (("chosen", "chosen"), ("rejected", "rejected"), ("margin", "margins")):
            mean = found.losses[f"reward_{name}"] / PAIRS
            assert mean == pytest.approx(metrics[f"rewards/{theirs}"], rel=1e-6), name


MEANS = (-30.0, -3.0, -0.7, -0.1, -1e-3, -1e-9, -1e-14)  # log-probabilities per token, to nearly certain ones


@pytest.mark.broad  # the import of trl takes seconds
def test_odds_and_their_gradient_are_trls(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    trainer = importlib.import_module("trl.experimental.orpo.orpo_trainer").ORPOTrainer
    stub = SimpleNamespace(beta=0.1, accelerator=SimpleNamespace(device="cpu"))
    both = torch.cartesian_prod(*[torch.tensor(MEANS, dtype=torch.float64)] * 2).requires_grad_()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda x: x)  # trl rounds to fp32
        theirs = -both[:, 0] - trainer.odds_ratio_loss(stub, *both.unbind(1))[0]
    ours = orpo(both)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(slopes(ours, both), slopes(theirs, both), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("certain", [0.0, 1e-7])  # rounding can make a sum of log-probabilities positive
def test_odds_of_certain_completions_have_a_finite_gradient(certain: float) -> None:
    others = torch.tensor([*MEANS, certain], dtype=torch.float64)
    for column in range(2):
        both = torch.stack([others, torch.full_like(others, certain)], 1).roll(column, 1).requires_grad_()
        losses = orpo(both)
        assert losses.isfinite().all() and slopes(losses, both).isfinite().all()
    chosen_is_certain = orpo(torch.tensor([[certain, -3.0]], dtype=torch.float64))
    assert chosen_is_certain.item() == pytest.approx(0, abs=2e-7)


def orpo(both: torch.Tensor) -> torch.Tensor:
    """Return the losses of pairs, [pairs], given the log-probabilities per token of chosen and rejected, [pairs, 2]."""
    zeros, ones = torch.zeros_like(both[:, 0]), torch.ones_like(both[:, 0])
    objective: Any = ObjectiveConfig(method="orpo").made()
    return objective.losses(Pairs(*(Side(mean, zeros, ones) for mean in both.unbind(1)), zeros))


def slopes(losses: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(losses.sum(), both)[0]
