"""`trivium certify`: does a plan compute what one process computes?"""

import shlex
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.local_path import local_path
from trivium.cli.machine import check_compiler
from trivium.cli.options import DEFAULT_PRESET, Ranks, Sets, refuse_no_place_for
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import progress_of, say, table
from trivium.config import leaves, to_tree
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.units import counted

SWEEP_RANKS = 8

Verdict = tuple[Mapping[str, Any], bool]  # as plain data, and whether it passed

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def certify(
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help=f"A shipped preset or a YAML/JSON file. Default: {DEFAULT_PRESET}.",
        ),
    ] = None,
    sets: Sets = None,
    ranks: Ranks = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Certify a generated set of layouts instead of one plan.")
    ] = False,
    random: Annotated[
        int | None,
        typer.Option("--random", metavar="N", min=1, help="Certify N random plans instead of one."),
    ] = None,
    max_ranks: Annotated[
        int | None,
        typer.Option(
            "--max-ranks",
            metavar="N",
            min=1,
            help=f"The largest layouts of --sweep and --random. Default: {SWEEP_RANKS}.",
        ),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Put known faults into the code; each must be caught.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", parser=local_path, metavar="FILE", help="Write the verdict as JSON too."),
    ] = None,
) -> None:
    """Run a plan on a reduced model in fp64 and compare gradients, norm, loss and weights with one process.

    Exit code 1 when it deviates; the simplest plan that deviates too is then looked for. --set seed=S: other random
    plans.
    """
    asked = {"--sweep": sweep, "--random": random is not None, "--mutants": mutants}
    together = [name for name, here in asked.items() if here]
    if len(together) > 1:
        raise ConfigError(f"{' and '.join(together)} were given together; give one of them")
    refuse_no_place_for("--json", json)
    of_a_plan = {"--preset": preset, "--set": _beside_the_seed(sets, random), "--ranks": ranks}
    _refuse_what_would_not_count(together, of_a_plan, max_ranks)
    given = Given(preset or DEFAULT_PRESET, tuple(sets or ()), ranks)
    if sweep:
        verdict, passed = _sweep(max_ranks or SWEEP_RANKS)
    elif random is not None:
        verdict, passed = _random(random, resolve(given).seed, max_ranks or SWEEP_RANKS)
    elif mutants:
        verdict, passed = _mutants()
    else:
        verdict, passed = _one(given)
    if json is not None:
        write_json(json, verdict)
    if not passed:
        raise typer.Exit(1)


def _beside_the_seed(sets: Sequence[str] | None, random: int | None) -> list[str]:
    """What is set but the seed, which random plans are drawn with."""
    return [each for each in sets or () if random is None or not each.startswith("seed=")]


def _refuse_what_would_not_count(
    many: Sequence[str], of_a_plan: Mapping[str, object], max_ranks: int | None
) -> None:
    """Options of one plan where plans are generated, and the other way round: who gives them takes the verdict for one
    of something else."""
    given = [name for name, value in of_a_plan.items() if value]
    if many and given:
        left = " but --set seed=S" if many == ["--random"] else ""
        raise ConfigError(
            f"{many[0]} certifies plans of its own, for which {' and '.join(given)} would not count{left}; leave "
            f"{' and '.join(given)} out, or {many[0]} to certify the plan given"
        )
    if max_ranks is not None and many not in (["--sweep"], ["--random"]):
        raise ConfigError(
            f"--max-ranks {max_ranks} bounds the plans of --sweep and --random alone; leave it out, or give one of them"
        )


def _one(given: Given) -> Verdict:
    from trivium.certify.reduce import reduced
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe, versions
    from trivium.certify.ways import WAYS

    plan = reduced(resolve(given).plan)
    check_compiler(wanted=plan.compiled)
    names = ", ".join(way.name for way in WAYS)
    ranks = counted(plan.layout.world_size, "rank")
    say(f"certifying {describe(plan)}: {ranks}, fp64, by the ways: {names}")
    with progress_of("certify") as progress:
        every = certified([plan] * len(WAYS), ways=WAYS, progress=progress)
    found = min(every, key=lambda c: (c.passed, c.error is not None, -c.worst))
    rows = [(q, value, found.worst_by_quantity[q]) for q, value in found.by_quantity.items()]
    for line in table(rows, header=("quantity", "deviation", "parameter")) if rows else []:
        say(line)
    passed = "passed" if found.passed else "FAILED"
    say(f"{passed}: tolerance {found.tolerance:g}, worst {found.worst:.2g}, by the way {found.way}")
    if found.error is not None:
        say(found.error)
    if found.first is not None:
        say(f"first wrong in step {found.first.step + 1}: {', '.join(found.first.quantities)}")
    tree = {**found.as_tree(), "ways": {c.way: c.passed for c in every}, "versions": versions()}
    return tree if found.passed else {**tree, **_simplest(plan, found)}, found.passed


def _sweep(max_ranks: int) -> Verdict:
    from trivium.certify.layouts import generated_plans

    plans = generated_plans(max_ranks)
    verdict, passed = _many(plans, f"layouts of at most {max_ranks} ranks")
    return {**verdict, "max_ranks": max_ranks}, passed


def _random(count: int, seed: int, max_ranks: int) -> Verdict:
    from trivium.certify.random_plans import random_plans

    plans = random_plans(count, max_ranks, seed)
    what = f"random plans of at most {max_ranks} ranks, seed {seed},"
    verdict, passed = _many(plans, what)
    return {**verdict, "max_ranks": max_ranks, "seed": seed}, passed


def _many(plans: Sequence[Plan], what: str) -> Verdict:
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe, versions
    from trivium.certify.ways import WAYS

    with progress_of("certify") as progress:
        found = certified(plans, ways=WAYS, progress=progress)
    both = list(zip(plans, found, strict=True))
    failed = [(p, c) for p, c in both if not c.passed]
    for plan, c in failed:
        say(
            f"FAILED by the way {c.way}: {describe(plan)}: {c.error or f'{c.worst:.2g} ({c.worst_parameter})'}"
        )
    say(f"{len(plans) - len(failed)} of {len(plans)} {what} passed")
    worst = max(
        (c.worst for c in found), key=lambda value: (value != value, value)
    )  # what is no number first
    say(f"tolerance {found[0].tolerance:g}, worst {worst:.2g}")
    # Numbers tell more than ranks that failed, and few ranks are looked at sooner.
    first = min(failed, key=lambda f: (f[1].error is not None, f[0].layout.world_size), default=None)
    return {
        "passed": len(plans) - len(failed),
        "failed": len(failed),
        "tolerance": found[0].tolerance,
        "versions": versions(),
        "results": [{**c.as_tree(), "name": describe(p)} for p, c in both],
        **(_simplest(*first) if first else {}),
    }, not failed


def _simplest(plan: Plan, verdict: Any) -> Mapping[str, Any]:
    """Says how to run again the simplest plan that deviates as this one does; itself, where its ranks failed or hung,
    which others may do for minutes."""
    from trivium.certify.simplest import simplest
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe
    from trivium.certify.ways import WAYS

    if verdict.error is not None:
        say("this plan again:")
        say(_command(plan))
        return {}
    tried, ways = 0, [way for way in WAYS if way.name == verdict.way]
    with progress_of("simplest") as progress:

        def fails(candidate: Plan) -> bool:
            nonlocal tried
            tried += 1
            progress(tried, None, describe(candidate))
            return not certified([candidate], ways=ways)[0].passed

        found = simplest(plan, fails)
    say(f"the simplest plan that fails too, of {tried} tried: {describe(found)}")
    say(_command(found))
    return {"simplest": to_tree(found)}


def _command(plan: Plan) -> str:
    """What certifies this plan: the difference to the default preset, as options."""
    before = dict(leaves(to_tree(resolve(Given(DEFAULT_PRESET)).plan)))
    words = [
        f"plan.{path}={dumps(value)}"
        for path, value in leaves(to_tree(plan))
        if path not in before or before[path] != value
    ]
    return "trivium certify " + " ".join(f"--set {shlex.quote(w)}" for w in words)


def _mutants() -> Verdict:
    from trivium.certify.mutants import try_mutants
    from trivium.certify.sweep import versions

    with progress_of("mutants") as progress:
        found = try_mutants(progress=progress)
    for line in table(
        [_row(v.as_tree()) for v in found], header=("fault", "caught by", "in step", "parameter")
    ):
        say(line)
    for verdict in found:
        if verdict.ended and not verdict.caught:
            say(f"  {verdict.name} ended its ranks instead, and named no place: {verdict.ended[0]}")
    caught = sum(v.caught for v in found)
    say(f"{caught} of {len(found)} faults caught")
    return {
        "caught": caught,
        "total": len(found),
        "versions": versions(),
        "mutants": [v.as_tree() for v in found],
    }, caught == len(found)


def _row(verdict: Mapping[str, Any]) -> Sequence[Any]:
    if not verdict["caught"]:
        return (verdict["name"], "NOT CAUGHT", "", "")
    by = verdict["by"][0]
    return (verdict["name"], ", ".join(by["quantities"]), str(by["step"] + 1), by["parameter"])
