"""The oracle against other oracles: torch's own AdamW, a finite difference, the documents apart."""

import math

import pytest
import torch

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.certify.oracle.optimizer import PlainOptimizer
from trivium.certify.plain import dropping, first_weights, keep_all, losses_of, order_of
from trivium.certify.reference import RECIPE, compute_reference, read_reference, sizes_until, write_reference
from trivium.plan.batch import Batch, Ramp

GPT = small().model
LLAMA = small(model={**ROTARY, "kv_heads": 2, "hidden": 32, "head": "untied"}).model


def texts(model, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.vocabulary, (count, model.sequence + 1), generator=generator)


def test_the_update_is_torchs_adamw_with_its_clip() -> None:
    weights = {"a.weight": torch.randn(3, 4).double(), "a.bias": torch.randn(4).double()}
    theirs = {k: torch.nn.Parameter(w.clone()) for k, w in weights.items()}
    groups = [
        {"params": [theirs["a.weight"]], "weight_decay": RECIPE.weight_decay},
        {"params": [theirs["a.bias"]], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, 0.0, (RECIPE.beta1, RECIPE.beta2), RECIPE.epsilon)
    ours = PlainOptimizer(weights, RECIPE, GPT)
    for step in range(4):
        for group in adamw.param_groups:
            group["lr"] = RECIPE.lr(step)
        gradients = {k: torch.randn_like(w) for k, w in weights.items()}
        for k, p in theirs.items():
            p.grad = gradients[k].clone()
        norm = torch.nn.utils.clip_grad_norm_(list(theirs.values()), RECIPE.clip(step) or math.inf)
        adamw.step()
        assert ours.step(gradients) == pytest.approx(float(norm), rel=1e-12)
    for k, w in weights.items():
        assert torch.allclose(w, theirs[k], rtol=1e-12, atol=0)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_no_position_sees_the_future(model) -> None:
    weights, text = first_weights(model, 1), texts(model)
    changed, counts = text.clone(), torch.ones(text.shape)
    changed[:, -2] = (changed[:, -2] + 1) % model.vocabulary  # the last one that is read
    counts[:, -2:] = 0

    def early(text: torch.Tensor) -> float:
        return float(losses_of(weights, model, text, counts, keep_all).cross_entropy)

    assert early(text) == early(changed)


def test_rotary_scores_depend_on_distance_alone() -> None:
    """A llama model without learned positions gives the same loss to a sequence that starts anywhere."""
    from trivium.certify.oracle.positions import rotate

    q = torch.randn(1, 6, 1, 1, 8).double()
    k = torch.randn(1, 6, 1, 1, 8).double()
    numbers, speeds = torch.arange(6)[None], [1.0, 0.1, 0.01, 0.001]

    def scores(shift: int) -> torch.Tensor:
        return torch.einsum("bsgnd,btgnd->bst", rotate(q, numbers + shift, speeds), rotate(k, numbers + shift, speeds))

    assert torch.allclose(scores(0), scores(11), atol=1e-12)


def test_documents_apart_are_numbered_seen_and_counted_apart() -> None:
    model = GPT.model_copy(update={"documents": "apart", "end_of_text": 0})
    order = order_of(model, torch.tensor([[5, 6, 0, 7, 0, 8, 9, 4]]))
    assert order.numbers.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert order.counts.tolist() == [[True, True, False, True, False, True, True, True]]
    assert order.sees[0].sum(-1).tolist() == [1, 2, 3, 1, 2, 1, 2, 3]


def test_of_a_batch_in_which_no_target_counts_loss_and_gradient_are_zero() -> None:
    model = GPT.model_copy(update={"documents": "apart", "end_of_text": 0, "z_loss": 0.1})
    weights = {name: w.requires_grad_() for name, w in first_weights(model, 1).items()}
    text = torch.zeros(2, model.sequence + 1, dtype=torch.int64)
    found = losses_of(weights, model, text, torch.ones(text.shape), keep_all)
    assert [x.item() for x in found] == [0, 0]
    gradients = torch.autograd.grad(sum(found), list(weights.values()), allow_unused=True)
    assert all(g is None or not g.any() for g in gradients)


def test_losses_are_means_with_the_weights_of_the_targets() -> None:
    model = GPT.model_copy(update={"z_loss": 0.1})
    weights, text, counts = first_weights(model, 1), texts(model, 2), torch.rand(2, model.sequence + 1)

    def losses(chosen: torch.Tensor) -> torch.Tensor:
        return torch.stack(losses_of(weights, model, text, chosen, keep_all))

    each = torch.zeros(2, dtype=torch.float64)
    for row in range(2):
        for place in range(1, model.sequence + 1):
            alone = torch.zeros_like(counts)
            alone[row, place] = 3  # of one target alone, any weight gives its own loss
            each += counts[row, place].double() * losses(alone)
    assert torch.allclose(losses(counts), each / counts[:, 1:].double().sum(), rtol=1e-12)


def test_dropout_keeps_the_mean_and_depends_on_sample_site_and_step() -> None:
    model = GPT.model_copy(update={"dropout": 0.25})
    ones = torch.ones(4, 50, 60)
    drop = dropping(model, 7, 0, range(4))
    assert float(drop(ones, "embedding").mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(drop(ones, "embedding"), drop(ones, "embedding"))
    for other in (drop(ones, "layers.0.mlp"), dropping(model, 7, 1, range(4))(ones, "embedding")):
        assert not torch.equal(drop(ones, "embedding"), other)


def test_a_reference_survives_its_file(tmp_path) -> None:
    reference = compute_reference(small())
    write_reference(tmp_path / "r.safetensors", reference)
    again = read_reference(tmp_path / "r.safetensors")
    assert (again.losses, again.norms, again.validation) == (reference.losses, reference.norms, reference.validation)
    assert again.z_losses == reference.z_losses
    assert (again.departures, again.repetitions) == (reference.departures, reference.repetitions)
    for a, b in zip(
        (*again.gradients, again.weights, again.initial),
        (*reference.gradients, reference.weights, reference.initial),
        strict=True,
    ):
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in b)


@pytest.mark.parametrize(("start", "increment", "full", "samples"), [(4, 4, 16, 16), (2, 2, 6, 6), (8, 8, 32, 500)])
def test_the_plans_table_of_the_ramp_counts_samples_as_one_step_after_the_other(
    start: int, increment: int, full: int, samples: int
) -> None:
    batch = Batch(sequences=full, ramp=Ramp(start=start, increment=increment, samples=samples))
    sizes = sizes_until(batch, samples)
    seen = 0
    for step, size in enumerate([*sizes, full, full]):
        assert batch.at(step) == (seen, size)
        seen += size
