"""`trivium certify`: exit codes, and the keys of its JSON."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivium.certify import layouts, mutants
from trivium.certify.random_plans import random_plans
from trivium.certify.reduce import reduced
from trivium.cli import certify as cli
from trivium.cli import main as entry
from trivium.cli.run_config import Given, resolve
from trivium.model.norm import Norm
from trivium.plan.plan import Plan

SMALL = [
    f"--set=plan.model.{k}" for k in ("layers=3", "hidden=40", "heads=5", "vocabulary=101", "sequence=32")
]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["trivium", "certify", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        return int(stopped.value.code or 0)

    return run


@pytest.mark.broad
def test_an_odd_plan_is_certified_and_the_certificate_names_plan_versions_and_worst(
    call, tmp_path: Path
) -> None:
    out = tmp_path / "one.json"
    degrees = ["tensor=5", "pipeline=1", "data=1", "chunks=1"]
    words = [*SMALL, *[f"--set=plan.layout.{d}" for d in degrees], "--set=plan.schedule=1f1b"]
    assert call(*words, "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert found["passed"] is True and found["worst"] <= found["tolerance"] == 1e-10
    assert found["plan"]["layout"]["tensor"] == 5
    assert {"loss", "gradient", "gradient norm", "weights"} <= found["by_quantity"].keys()
    assert {"trivium", "torch", "python", "commit"} == found["versions"].keys()
    assert found["worst_parameter"]


def test_a_plan_to_be_compiled_where_there_is_no_compiler_says_what_to_install(
    call, monkeypatch, capsys, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert call("--set=plan.compiled=true") == 3
    assert "plan.compiled=false" in capsys.readouterr().err


@pytest.mark.broad
def test_a_plan_that_deviates_exits_with_1_and_the_simplest_that_does_too_is_printed_as_a_command(
    call, monkeypatch, capsys, tmp_path: Path
) -> None:
    right = Norm.forward
    monkeypatch.setattr(Norm, "forward", lambda self, x: right(self, x) * (1 + 1e-6))
    layout = [f"--set=plan.layout.{a}=1" for a in ("tensor", "pipeline", "data", "chunks")]
    out = tmp_path / "one.json"
    words = ["--set=plan.schedule=1f1b", "--set=plan.zero=1", "--set=plan.model.dropout=0.1"]
    assert call(*SMALL, *layout, *words, "--json", str(out)) == 1
    assert "FAILED" in (told := capsys.readouterr().out) and "first wrong in step 1" in told
    command = next(line for line in told.splitlines() if line.startswith("trivium certify "))
    sets = [w for w in shlex.split(command)[2:] if w != "--set"]
    plan = Plan.model_validate(json.loads(out.read_text())["simplest"])
    assert reduced(resolve(Given("demo", tuple(sets))).plan) == plan
    assert plan.zero == 0 and plan.model.dropout == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--sweep", "--preset", "demo"], "--preset"),
        (["--sweep", "--set", "plan.zero=3"], "--set"),
        (["--sweep", "--set", "seed=3"], "--set"),
        (["--random", "1", "--set", "seed=3", "--set", "plan.zero=3"], "--set"),
        (["--mutants", "--ranks", "4"], "--ranks"),
        (["--mutants", "--max-ranks", "4"], "--max-ranks 4"),
        (["--max-ranks", "4"], "--max-ranks 4"),
    ],
)
def test_what_would_not_count_is_refused(call, capsys, words: list[str], named: str) -> None:
    """Who reads "passed" takes it for a verdict on the plan that was given."""
    assert call(*words) == 2
    assert named in capsys.readouterr().err


@pytest.mark.broad
def test_a_sweep_counts_and_lists_its_results(call, monkeypatch, tmp_path: Path) -> None:
    plans = layouts.generated_plans(2)[:3]
    monkeypatch.setattr(layouts, "generated_plans", lambda max_ranks: plans)
    assert call("--sweep", "--max-ranks", "2", "--json", str(tmp_path / "s.json")) == 0
    found = json.loads((tmp_path / "s.json").read_text())
    assert (found["passed"], found["failed"], len(found["results"])) == (3, 0, 3)
    assert {"plan", "passed", "worst", "worst_parameter"} <= found["results"][0].keys()


def test_random_plans_are_counted_and_listed(call, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert call("--random", "3", "--set", "seed=4", "--max-ranks", "2", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert (found["passed"], found["failed"], found["seed"], found["max_ranks"]) == (3, 0, 4, 2)
    assert [r["passed"] for r in found["results"]] == [True] * 3 and "simplest" not in found


@pytest.mark.parametrize("plan", random_plans(30, 8, seed=2))
def test_every_plan_can_be_given_as_options(plan: Plan) -> None:
    sets = [w for w in shlex.split(cli._command(plan))[2:] if w != "--set"]
    assert reduced(resolve(Given("demo", tuple(sets))).plan) == plan


def test_mutants_are_counted_and_one_that_escapes_fails(call, monkeypatch, tmp_path: Path) -> None:
    caught = [v for v in mutants.CATALOGUE if v.name == "accumulated-in-bf16"]
    escaped = caught[0]._replace(name="harmless", make=lambda original, mesh: original)
    out = tmp_path / "m.json"
    right = mutants.try_mutants
    monkeypatch.setattr(mutants, "try_mutants", lambda progress: right([*caught, escaped], progress=progress))
    assert call("--mutants", "--json", str(out)) == 1
    found = json.loads(out.read_text())
    assert (found["caught"], found["total"]) == (1, 2)
    first = found["mutants"][0]
    assert first["name"] == "accumulated-in-bf16" and first["caught"] is True
    assert first["by"][0]["quantities"] == ["gradient", "gradient norm"] and first["by"][0]["plan"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--sweep", "--mutants"], 2),
        (["--sweep", "--random", "3"], 2),
        (["--random", "0"], 2),
        (["--json", "nowhere/x.json"], 4),
        (["--set", "plan.layout.tensor=7"], 2),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_runs(call, words: list[str], code: int) -> None:
    assert call(*words) == code
