"""A sum of parts is that of all parts at each place, zero elsewhere, and takes no memory while it is empty."""

import pytest
import torch
import torch.nn.functional as F

from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.kernels.cpu import product
from trivium.kernels.operations import operations_of
from trivium.parallel.sharding import buckets
from trivium.parallel.sharding.gradient_sum import GradientSum
from trivium.parallel.sharding.zero import AdamRule
from trivium.training.trainer import Samples, Trainer

PRODUCTS = operations_of("cpu").products
SIZE = 11
PLACES = {0: (2, 2), 5: (3,), 8: (2,)}  # starts, and shapes of what is there


def empty(dtype: torch.dtype = torch.float64) -> GradientSum:
    return GradientSum(SIZE, dtype, torch.device("cpu"))


def memory(of: GradientSum) -> int:
    return of.flat.untyped_storage().size()


@pytest.mark.parametrize("order", ([0, 5, 8], [8, 0, 0, 8, 8], [5], []))
@pytest.mark.parametrize("given", (torch.float64, torch.bfloat16))
def test_it_is_the_sum_of_all_parts_and_zero_elsewhere(order: list[int], given: torch.dtype) -> None:
    torch.manual_seed(1)
    found, expected = empty(), torch.zeros(SIZE, dtype=torch.float64)
    for step in range(2):  # the second step must not depend on the first
        expected.zero_()
        for start in order:
            part = torch.randn(PLACES[start]).to(given)
            expected[start : start + part.numel()] += part.flatten().double()
            place = found.add(start, part)
            assert place.shape == part.shape and found.is_at(start, place) and not found.is_at(start, part)
        assert torch.equal(found.whole(), expected), step
        found.clear()


@pytest.mark.parametrize("given", (torch.float64, torch.bfloat16))
def test_first_parts_that_come_together_are_each_at_its_place_and_later_ones_are_added(given: torch.dtype) -> None:
    found, together, parts = empty(), empty(), {n: torch.randn(PLACES[n]).to(given) for n in (0, 8)}
    for start, part in parts.items():
        found.add(start, part)
    for (start, part), place in zip(parts.items(), together.store(parts), strict=True):
        assert together.is_at(start, place) and torch.equal(place, part.to(place.dtype))
    for sum_ in (found, together):
        sum_.add(8, parts[8])
    assert torch.equal(together.whole(), found.whole())


@pytest.mark.parametrize("weights", ("fp32", "bf16"))
@pytest.mark.parametrize("micro_batches", (1, 2))
def test_small_gradients_of_a_step_are_taken_together(
    weights: str, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored together in the last micro-batch, if it is also the first."""
    plan = small(precision={"weights": weights}, batch={"sequences": 2, "micro": 2 // micro_batches})
    trainer, read, norms = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule()), random_rows(plan), []
    several = [b for b in trainer.buckets if len(b.slots) > 1]
    stored: list[int] = []
    store = GradientSum.store
    monkeypatch.setattr(GradientSum, "store", lambda of, parts: (stored.append(len(parts)), store(of, parts))[1])
    for step, waits in enumerate((buckets.MAX_WAITING_ELEMENTS, 0)):
        monkeypatch.setattr(buckets, "MAX_WAITING_ELEMENTS", waits)
        samples = Samples(0, 2, read)
        norms.append(trainer.train_step(step, samples, 0.0).gradient_norm)
    vectors = sum(slot.parameter.ndim == 1 for b in several for slot in b.slots)
    if micro_batches == 1:
        assert len(stored) == len(several) == 1 and sum(stored) >= vectors > 10
    else:
        assert not stored
    assert norms[0] == norms[1]


@pytest.mark.parametrize("given", (torch.float64, torch.bfloat16))
def test_a_sparse_part_counts_at_its_rows_whether_first_or_later(given: torch.dtype) -> None:
    rows = torch.zeros(3, 2, dtype=given, requires_grad=True)
    F.embedding(torch.tensor([2, 0, 2]), rows, sparse=True).sum().backward()
    part, once = rows.grad, torch.tensor([1, 1, 0, 0, 2, 2], dtype=torch.float64)
    assert part is not None and part.is_sparse
    for found in (empty(), GradientSum(6, torch.float64, torch.device("cpu"))):  # next to other buckets, and alone
        found.flat = torch.full_like(found.flat, torch.nan)  # as memory may be found
        for times in (1, 2, 3):
            place = found.add(0, part)
            assert place.shape == part.shape and torch.equal(place.flatten(), times * once)
            assert found.is_at(0, place) and not found.is_at(0, part)


def test_it_takes_memory_from_its_first_part_on_until_it_is_cleared() -> None:
    found = empty()
    assert memory(found) == 0 and found.flat.nbytes == SIZE * 8
    found.add(5, torch.ones(3))
    assert memory(found) == SIZE * 8
    found.clear()
    assert memory(found) == 0
    assert torch.equal(found.whole(), torch.zeros(SIZE, dtype=torch.float64))


def test_a_first_part_as_large_as_the_sum_becomes_it_without_a_copy() -> None:
    found, part = empty(), torch.randn(SIZE, 1, dtype=torch.float64)
    expected = 2 * part.flatten()
    assert found.add(0, part).data_ptr() == part.data_ptr() and found.is_at(0, part)
    found.add(0, part.clone())
    assert torch.equal(found.whole(), expected) and torch.equal(part.flatten(), expected)
    found.clear()
    assert memory(found) == 0 and torch.equal(part.flatten(), expected)


@pytest.mark.parametrize(
    "part",
    (
        torch.ones(SIZE),
        torch.ones(SIZE + 1, dtype=torch.float64)[1:],
        torch.ones(1, dtype=torch.float64).expand(SIZE),
        torch.ones(SIZE, 2, dtype=torch.float64)[:, 0],
    ),
    ids=("of another dtype", "beside other numbers", "one number many times", "with gaps"),
)
def test_a_part_that_shares_its_memory_or_differs_is_copied(part: torch.Tensor) -> None:
    found = empty()
    found.add(0, part)
    found.add(0, torch.ones(SIZE, dtype=torch.float64))
    assert torch.equal(found.whole(), torch.full((SIZE,), 2.0, dtype=torch.float64))
    assert bool((part == 1).all())


@pytest.mark.parametrize("order", ([0, 6], [6, 0, 0, 6, 6], [6]))
@pytest.mark.parametrize("given", (torch.float64, torch.bfloat16))
def test_products_add_up_at_their_places(order: list[int], given: torch.dtype) -> None:
    torch.manual_seed(2)
    shapes = {0: (3, 2), 6: (1, 5)}
    found, expected = empty(), torch.zeros(SIZE, dtype=torch.float64)
    for _ in range(2):
        expected.zero_()
        for start in order:
            outputs, inputs = shapes[start]
            grad, x = torch.randn(7, outputs).to(given), torch.randn(7, inputs).to(given)
            expected[start : start + outputs * inputs] += (grad.T @ x).flatten().double()
            found.add_product(start, start + grad.shape[1] * x.shape[1], grad, x, PRODUCTS)
        torch.testing.assert_close(found.whole(), expected, rtol=1e-12, atol=1e-14)
        found.clear()


def test_products_of_narrow_matrices_are_not_rounded_where_the_device_adds_them_to_wide_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUs add them like this, and CPUs that multiply bf16 numbers in fp32."""
    torch.manual_seed(3)
    products = [(torch.randn(64, 3).bfloat16(), torch.randn(64, 2).bfloat16()) for _ in range(4)]
    exact = sum(grad.double().T @ x.double() for grad, x in products)

    def error() -> float:
        total = GradientSum(9, torch.float32, torch.device("cpu"))
        total.flat.untyped_storage().resize_(36)
        total.flat.fill_(torch.nan)  # as memory may be found
        for grad, x in products:
            total.add_product(2, 2 + grad.shape[1] * x.shape[1], grad, x, PRODUCTS)
        assert not total.whole()[[0, 1, 8]].any()
        return float((total.whole()[2:8].view(3, 2) - exact).norm() / exact.norm())

    monkeypatch.setattr(product, "multiplies_bf16_slowly", lambda: False)
    rounded = error()
    monkeypatch.setattr(product, "multiplies_bf16_slowly", lambda: True)
    assert error() < 1e-6 < 1e-4 < rounded < 1e-2


@pytest.mark.parametrize("weights", ("fp32", "bf16"))
@pytest.mark.parametrize("zero", (0, 2))
def test_no_gradient_takes_memory_before_the_first_backward_of_a_step(
    weights: str, zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small(precision={"weights": weights}, zero=zero)
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    seen: list[int] = []

    def held() -> int:
        of_autograd = [s.parameter.grad for b in trainer.buckets for s in b.slots]
        sums = sum(b.gradients.untyped_storage().size() for b in trainer.buckets)
        return sums + sum(g.nbytes for g in of_autograd if g is not None)

    backward = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *a: (seen.append(held()), backward(*a))[1])
    read = random_rows(plan)
    for step in range(2):
        trainer.train_step(step, Samples(0, plan.batch.sequences, read), 1e-3)
        assert held() == 0
    micro_batches = plan.batch.sequences // plan.batch.micro
    assert len(seen) == 2 * micro_batches and not any(seen[::micro_batches])
    if zero == 0:
        assert all(n > 0 for number, n in enumerate(seen) if number % micro_batches)
