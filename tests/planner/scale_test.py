"""Scaling curves: laws that hold whatever the machine."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cost.plans import mt_nlg, small
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named
from trivium.errors import ConfigError
from trivium.planner.scale import KINDS, degrees, geomean_speed_up, scaling, with_replicas

SELENE = machine_named("selene")


@pytest.fixture(scope="module")
def found():
    return scaling(mt_nlg(), SELENE)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_curves_reach_sixteen_thousand_devices_and_more_devices_are_never_slower(found, kind):
    points = found.curves[kind]
    replica = mt_nlg().layout.world_size // mt_nlg().layout.data
    assert points[0].devices == replica and 12_000 < points[-1].devices <= 16_384
    rates = [p.price.tokens_per_second for p in points]
    assert rates == sorted(rates)
    assert points[0].efficiency == 1.0 and all(0 < p.efficiency <= 1.0 for p in points)


def test_the_plans_own_size_costs_what_estimate_says(found):
    own = mt_nlg().layout.data
    plain = mt_nlg().model_copy(update={"batch": with_replicas(mt_nlg(), own, "strong").batch})
    for kind in KINDS:
        (point,) = [p for p in found.curves[kind] if p.data == own]
        assert point.price.seconds == estimate(plain, SELENE).seconds


def test_strong_scaling_keeps_the_batch_and_weak_scaling_that_of_a_replica(found):
    assert {p.sequences for p in found.curves["strong"]} == {mt_nlg().batch.sequences}
    assert len({p.sequences / p.data for p in found.curves["weak"]}) == 1


def test_only_points_beyond_the_machine_are_marked(found):
    for points in found.curves.values():
        assert all(p.beyond == (p.devices > SELENE.devices) for p in points)


def test_triggered_collectives_always_help_and_never_more_than_half_is_saved(found):
    for points in found.curves.values():
        assert all(p.price.seconds / 2 < p.triggered_seconds < p.price.seconds for p in points)
    assert all(0 < s.speed_up <= 1 and 0 < s.less_moved < 0.25 for s in found.sublayers)
    each = [s.speed_up for s in found.sublayers]
    assert min(each) <= geomean_speed_up(found.sublayers) <= max(each)


def test_fewer_devices_than_a_replica_and_a_shared_machine_are_refused():
    with pytest.raises(ConfigError, match="fewer than the 280 devices"):
        scaling(mt_nlg(), SELENE, largest=100)
    with pytest.raises(ConfigError, match="share"):
        scaling(mt_nlg(), machine_named("this-machine"))


@pytest.mark.broad
def test_the_script_prints_the_curves_and_writes_them(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    app, out, page = typer.Typer(), tmp_path / "scale.json", tmp_path / "scale.html"
    app.command()(import_module("scaling").scale)
    words = ["--preset", "mt-nlg-530b", "--machine", "selene", "--json", str(out), "--html", str(page)]
    done = CliRunner().invoke(app, words)
    assert not done.exit_code and "strong scaling, predicted" in done.output and "simulated T3" in done.output
    tree = json.loads(out.read_text())
    assert set(tree["curves"]) == {"strong", "weak"} and "simulated" in tree["t3"]["label"]
    text = page.read_text()
    assert "predicted" in text and "<script src" not in text  # it needs no network
    refused = CliRunner().invoke(app, ["--preset", "gpt-1.3b", "--largest", str(10**19)])
    assert refused.exit_code == 2 and "--largest" in refused.output


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_end_of_a_strong_curve_is_what_estimate_says_of_few_micro_batches(micro_batches):
    plan = mt_nlg(layout={"pipeline": 7, "data": 8}, schedule="zb-h1", batch={"sequences": 8 * micro_batches})
    (point,) = [p for p in scaling(plan, SELENE).curves["strong"] if p.data == 8]
    assert point.price.seconds == estimate(plan, SELENE).seconds


def test_copies_of_the_sharded_state_stay_whole_along_a_curve():
    layout = {"tensor": 1, "pipeline": 1, "data": 12, "context": 2, "shards": 8}
    plan = small(layout=layout, batch={"sequences": 96}, zero=3)
    assert degrees(plan, "weak", 40) == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert degrees(plan, "strong", 40) == [4, 8, 12, 16, 24]
    assert all(d % 4 == 0 for d in degrees(plan, "weak", 1 << 20))


def test_a_curve_begins_with_the_first_whole_copy():
    plan = small(layout={"tensor": 1, "pipeline": 2, "data": 8, "shards": 4}, zero=3)
    with pytest.raises(ConfigError, match=r"--largest 7 is fewer than the 8 devices of the 4 replicas"):
        scaling(plan, SELENE, largest=7)
    for points in scaling(plan, SELENE, largest=8).curves.values():
        assert [p.devices for p in points] == [8]


def test_endless_curves_of_copies_are_bounded_too():
    plan = small(layout={"tensor": 1, "pipeline": 2, "data": 8, "shards": 4}, zero=3)
    few = scaling(plan, SELENE.with_nodes(10**9), largest=10**10)
    assert few.curves["weak"][-1].devices > 9 * 10**9
