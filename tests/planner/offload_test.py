"""Offload in the planner: its price, the memory of hosts, and when a search tries it."""

import math
from typing import Any

import numpy as np
import pytest

from trivium.config import build, merge, to_tree
from trivium.cost.estimate import estimate
from trivium.cost.hardware import Link, Machine, machine_named
from trivium.cost.memory import memory_of_rank
from trivium.plan.offload import NO_OFFLOAD, Offload
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.search import best_search
from trivium.planner.search_text import winner_tree

H100 = machine_named("dgx-h100")
GPT = Plan.from_preset("gpt-1.3b", "precision.weights=bf16", "layout.data=1", "batch.sequences=64")
BOTH = GPT.model_copy(update={"offload": Offload(optimizer=1.0, activations=1.0)})
# Models of a size that few GPUs hold.
SPACE = SearchSpace(context=(1,), micro=(1,), schedules=("1f1b",), recompute=("none", "layer"), finalists=5)
LARGE = Plan.from_preset("gpt-1.3b", "precision.weights=bf16", "batch.sequences=8", "model.layers=150")


def linked(bandwidth: float, host_memory: int = 10**13) -> Machine:
    """Return a machine whose link between a device and its host has this bandwidth, in bytes per second."""
    link = Link(bandwidth=bandwidth, efficiency=1.0, latency_seconds=0.0)
    return H100.model_copy(update={"host_link": link, "host_memory_bytes": host_memory})


def test_copies_that_take_less_than_the_work_beside_them_cost_nothing() -> None:
    assert estimate(BOTH, linked(1e18)).seconds == pytest.approx(estimate(GPT, H100).seconds, rel=1e-12)


def test_on_a_slow_link_a_step_takes_as_long_as_the_copies() -> None:
    slow, memory = 1e6, memory_of_rank(BOTH, BOTH.layout.coordinate(0))
    price = estimate(BOTH, linked(slow))
    state = memory_of_rank(GPT, GPT.layout.coordinate(0)).optimizer
    kept = (memory.host - state) * BOTH.batch.micro_batches(BOTH.layout)
    assert price.parts.optimizer == pytest.approx(state / slow, rel=1e-3)
    hidden = estimate(GPT, H100).parts
    assert price.parts.host_copies + hidden.compute == pytest.approx(2 * kept / slow, rel=1e-3)


@pytest.mark.parametrize("recompute", [{"mode": "none"}, {"mode": "attention"}, {"mode": "layer"}], ids=str)
def test_only_activations_that_are_kept_are_copied(recompute: dict[str, Any]) -> None:
    slow = linked(1e6)
    plan = build(Plan, merge(to_tree(BOTH), {"recompute": recompute}))
    micro_batches, memory = plan.batch.micro_batches(plan.layout), memory_of_rank(plan, plan.layout.coordinate(0))
    optimizer = memory_of_rank(plan.model_copy(update={"offload": NO_OFFLOAD}), plan.layout.coordinate(0)).optimizer
    copies = 2 * (memory.host - optimizer) * micro_batches / slow.host_bandwidth
    for method in ("simulated", "closed form"):
        parts = estimate(plan, slow, method=method).parts
        hidden = copies - parts.host_copies
        assert 0 < hidden <= parts.compute, f"{method}: work hides at most as much as it takes"


def test_a_pass_that_only_scores_copies_no_activations() -> None:
    plain, away = (estimate(plan, linked(1e9), forward_passes=1).parts for plan in (GPT, BOTH))
    assert away.forward_passes == pytest.approx(plain.forward_passes) and away.host_copies > 0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_many_plans_at_once_leave_the_bytes_of_each_alone(share: float) -> None:
    found = best_search(LARGE, H100, 8, SPACE.model_copy(update={"offload": (share,)}))
    for place in range(3):
        plan = found.ranking.winner(place).plan
        worst = max((memory_of_rank(plan, plan.layout.coordinate(n)) for n in range(8)), key=lambda held: held.total)
        assert plan.offload == Offload(optimizer=share, activations=share)
        assert found.ranking.winner(place).memory_bytes == pytest.approx(worst.total, rel=0.03), plan
        assert worst.host > 0


def test_a_search_offloads_only_where_nothing_fits_without() -> None:
    assert best_search(LARGE, H100, 8, SPACE).chosen.plan.offload == NO_OFFLOAD
    found = best_search(LARGE, H100, 1, SPACE)
    price = estimate(found.chosen.plan, H100)
    assert found.chosen.plan.offload.optimizer == 1.0 and price.fits
    assert price.seconds == pytest.approx(found.chosen.seconds, rel=1e-6)
    assert winner_tree(found.chosen)["offload"] == to_tree(found.chosen.plan.offload)
    without = best_search(LARGE, H100, 1, SPACE.model_copy(update={"offload": (0.0,)}))
    assert not len(without.ranking.order), "a space without offload has none"


def test_no_plan_fits_on_hosts_with_too_little_memory() -> None:
    assert not len(best_search(LARGE, linked(6e10, host_memory=10**9), 1, SPACE).ranking.order)
    poor = estimate(BOTH, linked(6e10, host_memory=10**9))
    assert not poor.fits and poor.memory.total < poor.memory_limit
    assert not estimate(BOTH, H100.model_copy(update={"host_link": None})).fits, "without a link there is no host"


def test_ranks_that_share_a_host_gain_no_memory() -> None:
    here = machine_named("this-machine")
    plan = Plan.from_preset("demo")
    total = int(estimate(plan, here).memory.total)
    away = plan.model_copy(update={"offload": Offload(optimizer=1.0)})
    tight = here.model_copy(update={"memory_bytes": math.ceil(total / 0.92 * plan.layout.world_size)})
    assert estimate(plan, tight).fits and not estimate(away, tight.model_copy(update={"memory_bytes": total // 2})).fits


@pytest.mark.parametrize("name", ["dgx-h100", "selene", "workstation"])
def test_the_host_of_a_machine_has_figures_with_sources(name: str) -> None:
    machine = machine_named(name)
    assert {"host_memory_bytes", "host_link"} <= machine.sources.keys() and to_tree(machine)["host_link"]
    assert machine.host_bandwidth < machine.memory_bandwidth and np.isfinite(machine.host_bandwidth)
