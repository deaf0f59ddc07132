"""`trivium certify`: exit codes, and the keys of its JSON."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivium.certify import layouts, sweep, ways
from trivium.certify.certificate import Certificate, Deviation, certificate
from trivium.certify.random_plans import random_plans
from trivium.certify.reduce import reduced
from trivium.certify.ways import EVERY_WAY, WAYS, Way
from trivium.cli import certify as cli
from trivium.cli import main as entry
from trivium.cli.run_config import Given, resolve
from trivium.model.layers.norms import LayerNorm
from trivium.plan.plan import Plan

SMALL = [f"--set=plan.model.{k}" for k in ("layers=3", "hidden=24", "heads=3", "vocabulary=101", "sequence=16")]
SMALL += [f"--set=plan.batch.{k}" for k in ("sequences=4", "micro=2", "ramp=null")]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["trivium", "certify", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        return int(stopped.value.code or 0)

    return run


@pytest.fixture
def few_ways(monkeypatch: pytest.MonkeyPatch) -> tuple[Way, ...]:
    """Certify in three ways only, without those of many steps, layers or micro-batches."""
    monkeypatch.setattr(ways, "EVERY_WAY", WAYS[:3])
    return WAYS[:3]


@pytest.mark.broad
def test_an_odd_plan_is_certified_and_the_certificate_names_plan_versions_and_worst(
    call, few_ways, tmp_path: Path
) -> None:
    out = tmp_path / "one.json"
    degrees = ["tensor=3", "pipeline=1", "data=1", "chunks=1"]
    words = [*SMALL, *[f"--set=plan.layout.{d}" for d in degrees], "--set=plan.schedule=1f1b"]
    assert call(*words, "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert found["passed"] is True and found["worst"] <= found["tolerance"] == 1e-10
    assert set(found["ways"]) == {way.name for way in few_ways} and all(found["ways"].values())
    assert found["plan"]["layout"]["tensor"] == 3
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
    call, few_ways, monkeypatch, capsys, tmp_path: Path
) -> None:
    right = LayerNorm.forward
    monkeypatch.setattr(LayerNorm, "forward", lambda self, x: right(self, x) * (1 + 1e-6))
    layout = [f"--set=plan.layout.{a}=1" for a in ("tensor", "pipeline", "data", "chunks")]
    out = tmp_path / "one.json"
    words = ["--set=plan.schedule=1f1b", "--set=plan.zero=1", "--set=plan.model.dropout=0.1"]
    assert call(*SMALL, *layout, *words, "--json", str(out)) == 1
    assert "FAILED" in (told := capsys.readouterr().out) and "first wrong in step 1: " in told
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
        (["--sweep", "--ranks", "4"], "--ranks"),
        (["--max-ranks", "4"], "--max-ranks 4"),
    ],
)
def test_what_would_not_count_is_refused(call, capsys, words: list[str], named: str) -> None:
    """A reader of "passed" takes it for a verdict on the plan that was given."""
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


FAULT = Deviation("gradient", "layers.1.mlp.up.weight", 0.25, 6)
ALONE = [*SMALL, *[f"--set=plan.layout.{a}=1" for a in ("tensor", "pipeline", "data", "chunks")]]
ALONE += ["--set=plan.schedule=1f1b", "--set=plan.model.dropout=0.1"]


def fake(fails: Callable[[Plan, str], bool], interrupted_after: int) -> Callable[..., list[Certificate]]:
    """Return a `certify` that starts no ranks: plans that fail deviate by FAULT. It raises KeyboardInterrupt after
    `interrupted_after` certificates."""
    left = interrupted_after

    def certified(plans, *, ways, progress=None, on_known=lambda number, found: None):
        nonlocal left
        results = []
        for number, plan in enumerate(plans):
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            way = ways[number % len(ways)]
            wrong = fails(plan, way.name)
            results.append(certificate(plan, [FAULT if wrong else FAULT._replace(value=0.0)], way))
            on_known(number, results[-1])
        return results

    return certified


def test_a_failure_is_printed_before_the_other_ways_have_run(call, monkeypatch, capsys) -> None:
    """One line has the plan, what differs, by how much, where first, and in which way."""
    seen: list[str] = []

    def fails(plan: Plan, way: str) -> bool:
        seen.append(capsys.readouterr().out)
        return way == "large"

    monkeypatch.setattr(sweep, "certify", fake(fails, 1000))
    assert call(*ALONE) == 1
    assert seen[0].startswith("certifying tensor 1 pipeline 1 data 1")
    first = seen[2].splitlines()[0]
    assert first.startswith("FAILED in mode `large`: tensor 1 pipeline 1 data 1, 1f1b, ")
    assert first.endswith(": first wrong in step 7: gradient, at most by 0.25 in layers.1.mlp.up.weight")


def test_ctrl_c_while_shrinking_prints_the_smallest_plan_found_so_far(
    call, monkeypatch, capsys, tmp_path: Path
) -> None:
    """The exit code is 1, because the verdict stands, and the JSON is written."""
    out = tmp_path / "one.json"
    smallest: list[Plan] = []

    def fails(plan: Plan, way: str) -> bool:
        smallest.append(plan)
        return True

    monkeypatch.setattr(sweep, "certify", fake(fails, len(EVERY_WAY) + 2))
    assert call(*ALONE, "--json", str(out)) == 1
    told = capsys.readouterr().out
    assert "interrupted: the simplest plan that fails too, of 3 tried: " in told
    assert shlex.split(told.splitlines()[-1])[:2] == ["trivium", "certify"]
    found = json.loads(out.read_text())
    assert found["interrupted"] is True and found["passed"] is False
    assert Plan.model_validate(found["simplest"]) == smallest[-1] != smallest[0]


@pytest.mark.parametrize(("wrong", "code"), [("as it is", 1), ("none", 130)])
def test_ctrl_c_before_all_is_known_keeps_the_failures(
    call, monkeypatch, capsys, tmp_path: Path, wrong: str, code: int
) -> None:
    out = tmp_path / "one.json"
    monkeypatch.setattr(sweep, "certify", fake(lambda plan, way: way == wrong, 3))
    assert call(*ALONE, "--json", str(out)) == code
    assert out.exists() == (code == 1)
    if code == 1:
        assert f"interrupted: 3 of {len(EVERY_WAY)} certificates are made" in capsys.readouterr().out
        assert json.loads(out.read_text())["interrupted"] is True


def test_ctrl_c_ends_a_sweep_with_what_it_has(call, monkeypatch, capsys, tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    plans = layouts.generated_plans(2)[:5]
    monkeypatch.setattr(layouts, "generated_plans", lambda max_ranks: plans)
    monkeypatch.setattr(sweep, "certify", fake(lambda plan, way: plan == plans[1], 3))
    assert call("--sweep", "--json", str(out)) == 1
    found = json.loads(out.read_text())
    assert (found["passed"], found["failed"], found["interrupted"]) == (2, 1, True)
    assert "2 of 3 layouts of at most 8 ranks passed" in capsys.readouterr().out


@pytest.mark.parametrize("plan", random_plans(30, 8, seed=2))
def test_every_plan_can_be_given_as_options(plan: Plan) -> None:
    sets = [w for w in shlex.split(cli._command(plan))[2:] if w != "--set"]
    assert reduced(resolve(Given("demo", tuple(sets))).plan) == plan


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--sweep", "--random", "3"], 2),
        (["--random", "0"], 2),
        (["--json", "nowhere/x.json"], 4),
        (["--set", "plan.layout.tensor=7"], 2),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_runs(call, words: list[str], code: int) -> None:
    assert call(*words) == code
