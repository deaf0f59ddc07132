"""The certificate fails on every seeded fault, and on nothing else."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from faults import depth, pipeline, run, steps
from faults.mutant import Mutant, fault, plan
from faults.run import CATALOGUE, EVERY_MUTANT, try_mutants
from trivium.comms.mesh import Mesh
from trivium.model.layers.norms import LayerNorm

QUICK = ("final-norm-not-reduced", "tied-table-counted-twice", "stale-after-the-update", "ramp-skips-samples")


def test_catalogue_has_180_faults_with_unique_names_and_legal_plans() -> None:
    assert len(EVERY_MUTANT) >= 180 and len(CATALOGUE[steps]) + len(CATALOGUE[depth]) >= 20
    assert len({m.name for m in EVERY_MUTANT}) == len(EVERY_MUTANT) == len({m.recreates for m in EVERY_MUTANT})
    for mutant in EVERY_MUTANT:
        assert 1 <= len(mutant.plans) <= 3, mutant.name
        assert mutant.recreates.endswith("."), mutant.name
        assert all(p.check() == [] for p in mutant.plans), mutant.name


@pytest.mark.parametrize("mutant", EVERY_MUTANT, ids=lambda m: m.name)
def test_fault_is_removed_when_its_context_closes(mutant: Mutant) -> None:
    before = vars(mutant.owner)[mutant.attribute]
    with pytest.raises(KeyError), mutant.applied(Mesh.single()):
        assert vars(mutant.owner)[mutant.attribute] is not before
        raise KeyError("inside")
    assert vars(mutant.owner)[mutant.attribute] is before


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.broad] * (kind is not pipeline)) for kind in CATALOGUE],
    ids=lambda kind: kind.__name__.split(".")[-1],
)
def test_every_fault_is_caught_on_its_first_plan(kind: ModuleType) -> None:
    """`make faults` tries the other plans too."""
    found = try_mutants([m._replace(plans=m.plans[:1]) for m in CATALOGUE[kind]])
    assert [(v.name, v.ended) for v in found if not v.caught] == []


@pytest.mark.broad
def test_fault_is_caught_in_the_quantity_and_step_that_it_breaks() -> None:
    """A gradient, a norm, a stale weight, a lost sample."""
    chosen = [m for m in EVERY_MUTANT if m.name in QUICK]
    by = {v.name: v.by[0] for v in try_mutants([m._replace(plans=m.plans[:1]) for m in chosen])}
    assert by["final-norm-not-reduced"].parameter.startswith("head.norm")
    assert by["tied-table-counted-twice"].quantities == ("gradient norm",)
    assert (by["stale-after-the-update"].step, by["ramp-skips-samples"].step) == (1, 2)


def test_only_deviations_and_crashes_that_name_their_place_are_caught() -> None:
    @fault(LayerNorm, "forward", plan())
    def nothing_wrong(original, mesh):
        """Computes the same."""
        return lambda self, x: original(self, x)

    @fault(LayerNorm, "forward", plan())
    def crashes(original, mesh):
        """Stops in a stage."""
        return lambda self, x: original(self, x[:, :, 1:])

    @fault(Mesh, "at", plan())
    def crashes_before_any_stage(original, mesh):
        """Stops with a traceback."""
        return lambda self: 1 / 0

    same, crash, early = try_mutants([nothing_wrong, crashes, crashes_before_any_stage])
    assert not same.caught and not same.ended
    assert not early.caught and "division by zero" in early.ended[0]
    assert crash.caught and "failed at F0.0" in crash.by[0].error


def test_fault_in_shared_code_is_caught_although_the_oracle_has_it_too() -> None:
    chosen = ("residual-scale-missing-in-the-table", "names-cut-short", "deviation-three-times-as-wide")
    found = try_mutants([m._replace(plans=m.plans[:1]) for m in EVERY_MUTANT if m.name in chosen])
    assert {v.name: v.by[0].quantities for v in found} == {
        "names-cut-short": ("repeated random draws",),
        "residual-scale-missing-in-the-table": ("initial values",),
        "deviation-three-times-as-wide": ("initial values",),
    }
    assert {v.by[0].step for v in found} == {-1}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_fault_is_caught_on_every_plan() -> None:
    found = try_mutants(EVERY_MUTANT)
    assert [v.name for v in found if not v.caught] == []
    assert {v.name: len(v.by) for v in found} == {m.name: len(m.plans) for m in EVERY_MUTANT}


def test_runner_counts_caught_faults_and_fails_if_one_is_not(tmp_path: Path, monkeypatch) -> None:
    caught = next(m for m in EVERY_MUTANT if m.name == "accumulated-in-bf16")
    escaped = caught._replace(name="harmless", make=lambda original, mesh: original)
    monkeypatch.setattr(run, "EVERY_MUTANT", (caught, escaped))
    monkeypatch.setattr(sys, "argv", ["faults", "--json", str(tmp_path / "m.json")])
    assert run.main() == 1
    found = json.loads((tmp_path / "m.json").read_text())
    assert (found["caught"], found["total"]) == (1, 2)
    first = found["mutants"][0]
    assert first["name"] == "accumulated-in-bf16" and first["caught"] is True
    assert first["by"][0]["quantities"] == ["gradient", "gradient norm"] and first["by"][0]["plan"]
