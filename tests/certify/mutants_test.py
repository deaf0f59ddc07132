"""Can the certificate fail? It must, on every seeded fault."""

from pathlib import Path
from types import ModuleType

import pytest

from trivium.certify.faults import context, data, depth, pipeline, steps, tensor, ways
from trivium.certify.faults.mutant import Mutant, fault, plan
from trivium.certify.mutants import CATALOGUE, try_mutants
from trivium.comms.mesh import Mesh
from trivium.model.layers.norms import LayerNorm

QUICK = ("final-norm-not-reduced", "tied-table-counted-twice", "stale-after-the-update", "ramp-skips-samples")


def test_the_catalogue_has_at_least_105_faults_each_with_its_own_name_sentence_and_plans() -> None:
    assert len(CATALOGUE) >= 105 and len(steps.FAULTS) + len(depth.FAULTS) >= 20
    assert len({m.name for m in CATALOGUE}) == len(CATALOGUE) == len({m.recreates for m in CATALOGUE})
    for mutant in CATALOGUE:
        assert 1 <= len(mutant.plans) <= 3, mutant.name
        assert mutant.recreates.endswith("."), mutant.name
        assert all(p.check() == [] for p in mutant.plans), mutant.name


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda m: m.name)
def test_a_fault_is_gone_when_its_context_closes_whatever_happened(mutant: Mutant) -> None:
    before = vars(mutant.owner)[mutant.attribute]
    with pytest.raises(KeyError), mutant.applied(Mesh.single()):
        assert vars(mutant.owner)[mutant.attribute] is not before
        raise KeyError("inside")
    assert vars(mutant.owner)[mutant.attribute] is before


@pytest.mark.parametrize(
    "kind",
    (
        pipeline,
        *(
            pytest.param(each, marks=pytest.mark.broad)
            for each in (tensor, data, context, ways, steps, depth)
        ),
    ),
    ids=lambda kind: kind.__name__.split(".")[-1],
)
def test_every_fault_of_the_catalogue_is_caught(kind: ModuleType) -> None:
    """On the first plan that it names; `trivium certify --mutants` takes the others too."""
    found = try_mutants([m._replace(plans=m.plans[:1]) for m in kind.FAULTS])
    assert [(v.name, v.ended) for v in found if not v.caught] == []


@pytest.mark.broad
def test_a_fault_is_caught_by_what_it_breaks_in_the_step_that_it_breaks() -> None:
    """A gradient, a norm, a stale weight, a lost sample."""
    chosen = [m for m in CATALOGUE if m.name in QUICK]
    by = {v.name: v.by[0] for v in try_mutants([m._replace(plans=m.plans[:1]) for m in chosen])}
    assert by["final-norm-not-reduced"].parameter.startswith("head.norm")
    assert by["tied-table-counted-twice"].quantities == ("gradient norm",)
    assert (by["stale-after-the-update"].step, by["ramp-skips-samples"].step) == (1, 2)


def test_a_change_that_changes_nothing_is_not_caught_and_a_crash_is_caught_only_where_it_names_the_place() -> (
    None
):
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


def test_a_fault_in_code_that_the_oracle_reads_is_put_into_both_sides() -> None:
    """Otherwise the comparison alone would find what it cannot see where the source itself is wrong."""
    chosen = ("residual-scale-missing-in-the-table", "names-cut-short", "deviation-three-times-as-wide")
    found = try_mutants([m._replace(plans=m.plans[:1]) for m in CATALOGUE if m.name in chosen])
    assert {v.name: v.by[0].quantities for v in found} == {
        "names-cut-short": ("repeated random draws",),
        "residual-scale-missing-in-the-table": ("initial values",),
        "deviation-three-times-as-wide": ("initial values",),
    }
    assert {v.by[0].step for v in found} == {-1}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_fault_is_caught_on_every_plan_it_names() -> None:
    found = try_mutants()
    assert [v.name for v in found if not v.caught] == []
    assert {v.name: len(v.by) for v in found} == {m.name: len(m.plans) for m in CATALOGUE}


def test_the_docs_list_the_catalogue_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text(encoding="utf-8")
    rows = [f"| `{m.name}` | {m.recreates} |" for m in CATALOGUE]
    assert "\n".join(["| fault | what it re-creates |", "|---|---|", *rows]) in page
