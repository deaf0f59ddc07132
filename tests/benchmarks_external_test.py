"""Peers of other environments: how a duel reports, and that nothing about a peer is passed over in silence."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def peers():
    """The benchmark's modules; they import each other as scripts of one folder."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import external
        import setting
        from peers import duel, environment, side

        yield {"external": external, "setting": setting, "duel": duel, "environment": environment, "side": side}
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def duel_against(peers):
    """Trivium with two replicas against an entry of this same environment, two rounds."""

    def run(module="trivium_engine", function="trivium", **options):
        entry = peers["side"].Entry
        here, variables = Path(sys.executable), dict(os.environ)
        ours = {"layout": {"data": 2}, "zero": 1}
        duel = peers["duel"].Duel(
            name="test",
            ranks=2,
            setting=peers["setting"].TINY.with_batch(4, 2),
            ours=entry("trivium", "trivium_engine", "trivium", ours, here, variables),
            peer=entry("peer", module, function, options, here, variables),
            target=None,
            says="",
        )
        return peers["duel"].fight(duel, 2)

    return run


def test_a_peer_that_is_not_installed_says_how_to_install_it(peers, tmp_path):
    rows = peers["external"].external_rows(tmp_path)
    results = [row.run(20) for row in rows]
    assert {r["name"].split()[0] for r in results} == {"megatron-core", "DeepSpeed"}
    for result in results:
        assert result["status"] == "not run" and result["comparisons"] == []
        peer = result["name"].split()[0]
        assert result["reason"] == f"not installed: python benchmarks/external.py --install {peer}"


def test_every_row_trains_the_same_setting_in_a_layout_that_trivium_accepts(peers, tmp_path):
    for row in peers["external"].external_rows(tmp_path):
        duel = row.duel
        plan = duel.setting.plan(**duel.ours.options)
        assert plan.layout.world_size == duel.ranks, row.name


def test_an_environment_is_ready_only_for_the_requirements_it_was_built_from(peers, tmp_path):
    environment = peers["environment"].environments(tmp_path)["DeepSpeed"]
    assert not environment.is_ready()
    environment.path.mkdir()
    (environment.path / "key").write_text(environment.key())
    assert environment.is_ready()
    assert not replace(environment, steps=(*environment.steps, ("another==1.0",))).is_ready()
    assert not replace(environment, variables={}).is_ready()


@pytest.mark.slow
def test_two_sides_that_compute_the_same_are_timed(duel_against):
    result = duel_against(layout={"data": 2}, zero=0)
    (comparison,) = result["comparisons"]
    assert comparison["status"] == "measured" and comparison["loss_deviation"] <= result["loss_tolerance"]
    ours, peer = result["seconds"]["trivium"], result["seconds"]["peer"]
    assert comparison["ratio"] == pytest.approx(peer["median"] / ours["median"])
    assert all(0 < s["min"] <= s["median"] and s["cpu"] > 0 for s in (ours, peer))


@pytest.mark.slow
def test_a_side_that_computes_something_else_is_not_compared(duel_against):
    (comparison,) = duel_against(layout={"data": 2}, zero=0, precision={"weights": "bf16"})["comparisons"]
    assert comparison["status"] == "failed" and "not the same computation" in comparison["reason"]


@pytest.mark.slow
def test_a_peer_that_raises_is_reported_with_what_it_said(duel_against):
    result = duel_against(function="unknown")
    (comparison,) = result["comparisons"]
    assert comparison["status"] == "failed" and "AttributeError" in comparison["reason"]
    assert result["failed"].keys() == {"peer"}


@pytest.mark.slow
def test_a_peer_that_dies_is_reported_with_its_exit_code(duel_against):
    (comparison,) = duel_against(module="os", function="_exit", status=7)["comparisons"]
    assert comparison["status"] == "failed" and "code 7" in comparison["reason"]


@pytest.mark.slow
def test_the_ranks_of_a_duel_are_gone_when_it_ends(duel_against):
    duel_against(layout={"data": 2}, zero=0)
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "peers.rank" not in listed
