"""Laws of optimal transport: the potentials are those of the exact linear program, the gradient is a gradient."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from trivium.corpus.select.select import calibrated
from trivium.corpus.select.sinkhorn import sinkhorn, soft_minimum
from trivium.seeds import generator_for


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


@pytest.mark.parametrize(("n", "m"), [(6, 9), (30, 20), pytest.param(110, 90, marks=pytest.mark.broad)])
def test_potentials_and_distance_are_those_of_the_linear_program(n, m):
    costs, a, b = problem(n, m)
    distance, f, _ = exact(costs, a, b)
    epsilon = 1e-3 * costs.mean()
    found = sinkhorn(costs, a, b, epsilon=epsilon, tolerance=1e-4, iterations=30_000)
    # the entropic dual lies within epsilon x log of the number of couplings of the exact one
    assert found.distance == pytest.approx(distance, abs=epsilon * np.log(n * m))
    slack = costs - found.f[:, None] - found.g[None, :]
    assert slack.min() > -epsilon * np.log(n * m)
    assert np.corrcoef(found.f, f)[0, 1] > 0.999
    assert np.abs(calibrated(found.f, found.f, a) - calibrated(f, f, a)).max() < 0.02 * np.ptp(f)


def test_the_gradient_is_the_finite_difference_of_the_distance():
    """Mass moves to each point of the source, and to points that the source lacks."""
    costs, a, b = problem(12, 15)
    others = problem(5, 15, seed=1)[0]
    options = {"epsilon": 0.1, "tolerance": 1e-13, "iterations": 100_000}
    found = sinkhorn(costs, a, b, **options)
    f = np.concatenate([found.f, soft_minimum(others, found.g + 0.1 * np.log(b), 0.1)])
    gradient = calibrated(f, found.f, a)
    step = 1e-6
    for i, row in enumerate([*costs, *others]):
        moved = sinkhorn(np.vstack([costs, row]), np.append((1 - step) * a, step), b, **options)
        assert (moved.distance - found.distance) / step == pytest.approx(gradient[i], rel=1e-4, abs=1e-5)


def test_small_epsilon_makes_the_gradient_the_finite_difference_of_the_linear_program():
    costs, a, b = problem(12, 15)
    before, _, _ = exact(costs, a, b)
    found = sinkhorn(costs, a, b, epsilon=1e-3 * costs.mean(), tolerance=1e-6, iterations=30_000)
    gradient = calibrated(found.f, found.f, a)
    step = 1e-5
    changes = [(exact(costs, (1 - step) * a + step * one, b)[0] - before) / step for one in np.eye(12)]
    np.testing.assert_allclose(gradient, changes, atol=0.02 * np.ptp(changes))


def test_the_calibrated_gradient_is_the_one_of_lava_but_for_a_factor():
    """LAVA takes the mass from all other points of a source of n equal weights: f_i - sum of the others / (n - 1)."""
    f = generator_for(3, "potentials").normal(size=9)
    lava = [(f[i] - np.delete(f, i).mean()) for i in range(9)]
    np.testing.assert_allclose(calibrated(f, f, np.full(9, 1 / 9)), np.multiply(8 / 9, lava))


def test_potentials_of_points_of_the_source_follow_from_their_costs_alone():
    costs, a, b = problem(40, 25)
    found = sinkhorn(costs, a, b, epsilon=0.05, tolerance=1e-12)
    np.testing.assert_allclose(soft_minimum(costs, found.g + 0.05 * np.log(b), 0.05), found.f, atol=1e-10)


@pytest.mark.broad
def test_plan_and_distance_are_those_of_pot():
    ot = pytest.importorskip("ot", reason="POT is not installed")
    costs, a, b = problem(30, 20)
    epsilon = 0.1
    found = sinkhorn(costs, a, b, epsilon=epsilon, tolerance=1e-12)
    plan = a[:, None] * b * np.exp((found.f[:, None] + found.g - costs) / epsilon)
    np.testing.assert_allclose(plan, ot.sinkhorn(a, b, costs, epsilon, stopThr=1e-13, numItermax=100_000), atol=1e-9)
    sharp = sinkhorn(costs, a, b, epsilon=1e-3, tolerance=1e-6, iterations=100_000)
    assert sharp.distance == pytest.approx(ot.emd2(a, b, costs), abs=1e-3 * np.log(600))


def test_large_epsilon_makes_the_gradient_the_mean_cost():
    costs, a, b = problem(40, 25)
    found = sinkhorn(costs, a, b, epsilon=1e6, tolerance=1e-12)
    means = costs @ b
    np.testing.assert_allclose(calibrated(found.f, found.f, a), means - a @ means, atol=1e-5)


def test_constant_added_to_all_costs_leaves_the_gradient():
    costs, a, b = problem(40, 25)
    found, more = (sinkhorn(c, a, b, epsilon=0.1, tolerance=1e-12) for c in (costs, costs + 7))
    assert more.distance == pytest.approx(found.distance + 7)
    np.testing.assert_allclose(calibrated(more.f, more.f, a), calibrated(found.f, found.f, a), atol=1e-9)


def test_the_coupling_of_the_potentials_has_both_marginals():
    costs, a, b = problem(40, 25)
    epsilon = 0.05
    found = sinkhorn(costs, a, b, epsilon=epsilon, tolerance=1e-9)
    plan = a[:, None] * b * np.exp((found.f[:, None] + found.g - costs) / epsilon)
    assert found.error <= 1e-9
    assert np.abs(plan.sum(axis=1) - a).sum() < 1e-8
    assert np.abs(plan.sum(axis=0) - b).sum() < 1e-12


def test_no_epsilon_underflows():
    costs, a, b = problem(10, 10)
    found = sinkhorn(1000 * costs, a, b, epsilon=1e-3, iterations=200)
    assert np.isfinite(found.f).all() and np.isfinite(found.g).all()
    assert found.iterations <= 200
