"""Laws of optimal transport: the potentials are those of the exact linear program, the gradient is a gradient."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from trivium.corpus.select.select import calibrated
from trivium.corpus.select.sinkhorn import Blocks, sinkhorn
from trivium.seeds import generator_for


def blocks_of(costs: np.ndarray, batch: int) -> Blocks:
    """A whole cost matrix, by rows."""
    return lambda: ((slice(n, n + batch), costs[n : n + batch]) for n in range(0, len(costs), batch))


def problem(n, m, seed=0):
    generator = generator_for(seed, "transport-test", n, m)
    costs = cdist(generator.normal(size=(n, 3)), generator.normal(size=(m, 3)) + 0.5)
    a, b = (generator.uniform(0.5, 1.5, size) for size in (n, m))
    return costs, a / a.sum(), b / b.sum()


def exact(costs, a, b):
    """The linear program's distance, potentials and plan."""
    n, m = costs.shape
    rows = sparse.kron(sparse.eye(n), np.ones((1, m)))
    columns = sparse.kron(np.ones((1, n)), sparse.eye(m))
    found = linprog(costs.ravel(), A_eq=sparse.vstack([rows, columns]), b_eq=np.concatenate([a, b]), method="highs")
    assert found.status == 0
    return found.fun, found.eqlin.marginals[:n], found.x.reshape(n, m)


@pytest.mark.broad
@pytest.mark.parametrize(("n", "m"), [(6, 9), (30, 20), (110, 90)])
def test_potentials_and_distance_are_those_of_the_linear_program(n, m):
    costs, a, b = problem(n, m)
    distance, f, _ = exact(costs, a, b)
    epsilon = 1e-3 * costs.mean()
    found = sinkhorn(blocks_of(costs, 16), a, b, epsilon=epsilon, tolerance=1e-4, iterations=30_000)
    # the entropic dual lies within epsilon x log of the number of couplings of the exact one
    assert found.distance == pytest.approx(distance, abs=epsilon * np.log(n * m))
    slack = costs - found.f[:, None] - found.g[None, :]
    assert slack.min() > -epsilon * np.log(n * m)
    assert np.corrcoef(found.f, f)[0, 1] > 0.999
    assert np.abs(calibrated(found.f) - calibrated(f)).max() < 0.02 * np.ptp(f)


def test_the_gradient_is_the_finite_difference_of_the_distance():
    costs, a, b = problem(12, 15)
    options = {"epsilon": 0.1, "tolerance": 1e-13, "iterations": 100_000}
    gradient = calibrated(sinkhorn(blocks_of(costs, 5), a, b, **options).f)
    step = 1e-5
    for i in range(len(a)):
        change = np.full(len(a), -step / (len(a) - 1))
        change[i] = step
        ends = [sinkhorn(blocks_of(costs, 5), a + sign * change, b, **options).distance for sign in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(gradient[i], rel=1e-5, abs=1e-7)


def test_the_coupling_of_the_potentials_has_both_marginals():
    costs, a, b = problem(40, 25)
    epsilon = 0.05
    found = sinkhorn(blocks_of(costs, 7), a, b, epsilon=epsilon, tolerance=1e-9)
    plan = a[:, None] * b * np.exp((found.f[:, None] + found.g - costs) / epsilon)
    assert found.error <= 1e-9
    assert np.abs(plan.sum(axis=1) - a).sum() < 1e-8
    assert np.abs(plan.sum(axis=0) - b).sum() < 1e-12


@pytest.mark.parametrize("batch", [1, 3, 40, 1000])
def test_the_size_of_the_batch_changes_nothing(batch):
    costs, a, b = problem(40, 25)
    whole = sinkhorn(blocks_of(costs, 40), a, b, epsilon=0.1)
    parts = sinkhorn(blocks_of(costs, batch), a, b, epsilon=0.1)
    np.testing.assert_allclose(parts.f, whole.f, atol=1e-9)


def test_no_epsilon_underflows():
    costs, a, b = problem(10, 10)
    found = sinkhorn(blocks_of(1000 * costs, 4), a, b, epsilon=1e-3, iterations=200)
    assert np.isfinite(found.f).all() and np.isfinite(found.g).all()
