"""`trivium certify`: does a plan compute what one process computes?"""

import shlex
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.machine import check_compiler
from trivium.cli.model_argument import MODELS
from trivium.cli.options import DEFAULT_PRESET, Ranks, Sets, refuse_no_place_for
from trivium.cli.paths import local_path
from trivium.cli.run_config import Given, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import progress_of, say, table
from trivium.config import leaves, preset_names, to_tree
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.units import counted

if TYPE_CHECKING:
    from trivium.certify.certificate import Certificate
    from trivium.certify.ways import Way

SWEEP_RANKS = 8

Verdict = tuple[Mapping[str, Any], bool]  # as plain data, and whether it passed

app = App()


@app.command()
@shows("seed", "plan")
def certify(
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "--model",
            metavar="NAME",
            help=f"The model: {MODELS}. Default: {DEFAULT_PRESET}.",
            autocompletion=preset_names,
        ),
    ] = None,
    sets: Sets = None,
    ranks: Ranks = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Certify a generated set of layouts instead of one plan.")
    ] = False,
    random: Annotated[
        int | None, typer.Option("--random", metavar="N", min=1, help="Certify N random plans instead of one.")
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
    json: Annotated[
        Path | None, typer.Option("--json", parser=local_path, metavar="FILE", help="Write the verdict as JSON too.")
    ] = None,
) -> None:
    """Run a plan on a reduced model in fp64 and compare gradients, norm, loss and weights with one process.

    Exit code 1 when it deviates, which is printed at once; the simplest plan that deviates too is then looked for, and
    Ctrl-C ends that search with the simplest known so far. --set seed=S: other random plans.
    """
    asked = {"--sweep": sweep, "--random": random is not None}
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
    else:
        verdict, passed = _one(given)
    if json is not None:
        write_json(json, verdict)
    if not passed:
        raise typer.Exit(1)


def _beside_the_seed(sets: Sequence[str] | None, random: int | None) -> list[str]:
    """Return the settings other than the seed, with which random plans are drawn."""
    return [each for each in sets or () if random is None or not each.startswith("seed=")]


def _refuse_what_would_not_count(many: Sequence[str], of_a_plan: Mapping[str, object], max_ranks: int | None) -> None:
    """Options of one plan where plans are generated, and the other way round: who gives them takes the verdict for one
    of something else."""
    given = [name for name, value in of_a_plan.items() if value]
    if many and given:
        left = " but --set seed=S" if many == ["--random"] else ""
        raise ConfigError(
            f"{many[0]} certifies generated plans, on which {' and '.join(given)} has no effect{left}; leave "
            f"{' and '.join(given)} out, or {many[0]} to certify the plan given"
        )
    if max_ranks is not None and not many:
        raise ConfigError(
            f"--max-ranks {max_ranks} bounds the plans of --sweep and --random alone; leave it out, or give one of them"
        )


def _one(given: Given) -> Verdict:
    from trivium.certify.reduce import reduced
    from trivium.certify.sweep import describe, versions
    from trivium.certify.ways import EVERY_WAY

    plan = reduced(resolve(given).plan)
    check_compiler(wanted=plan.compiled)
    names = ", ".join(way.name for way in EVERY_WAY)
    ranks = counted(plan.layout.world_size, "rank")
    say(f"certifying {describe(plan)}: {ranks}, fp64; modes: {names}")
    known, interrupted = _certified([plan] * len(EVERY_WAY), EVERY_WAY)
    every = list(known.values())
    found = min(every, key=lambda c: (c.passed, c.error is not None, -c.worst))
    rows = [(q, value, found.worst_by_quantity[q]) for q, value in found.by_quantity.items()]
    for line in table(rows, header=("quantity", "deviation", "parameter")) if rows else []:
        say(line)
    passed = "passed" if found.passed else "FAILED"
    say(f"{passed}: largest deviation {found.worst:.2g} (mode `{found.way}`), tolerance {found.tolerance:g}")
    tree = {**found.as_tree(), "ways": {c.way: c.passed for c in every}, "versions": versions()}
    if found.passed or interrupted:
        return {**tree, "interrupted": interrupted}, found.passed
    return {**tree, **_simplest(plan, found)}, False


def _certified(plans: Sequence[Plan], ways: Sequence["Way"]) -> tuple[dict[int, "Certificate"], bool]:
    """Certify the plans and print each failure at once. Return the certificates by number of the plan, and whether
    Ctrl-C ended the work. If no plan had failed by then, KeyboardInterrupt is raised again."""
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe

    known: dict[int, Certificate] = {}

    def keep(number: int, found: "Certificate") -> None:
        known[number] = found
        if not found.passed:
            say(f"FAILED in mode `{found.way}`: {describe(plans[number])}: {found.error or found.first}")

    try:
        with progress_of("certify") as progress:
            certified(plans, ways=ways, progress=progress, on_known=keep)
    except KeyboardInterrupt:
        if all(found.passed for found in known.values()):
            raise
        say(f"interrupted: {len(known)} of {len(plans)} certificates are made")
        return known, True
    return known, False


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
    from trivium.certify.sweep import describe, versions
    from trivium.certify.ways import IN_TURN

    known, interrupted = _certified(plans, IN_TURN)
    both = [(plans[number], known[number]) for number in sorted(known)]
    failed = [(p, c) for p, c in both if not c.passed]
    say(f"{len(both) - len(failed)} of {len(both)} {what} passed")
    # A number that is not finite comes first.
    worst = max((c.worst for _, c in both), key=lambda value: (value != value, value))
    tolerance = both[0][1].tolerance
    say(f"largest deviation {worst:.2g}, tolerance {tolerance:g}")
    # Numbers tell more than ranks that failed, and few ranks are looked at sooner.
    first = min(failed, key=lambda f: (f[1].error is not None, f[0].layout.world_size), default=None)
    return {
        "passed": len(both) - len(failed),
        "failed": len(failed),
        "interrupted": interrupted,
        "tolerance": tolerance,
        "versions": versions(),
        "results": [{**c.as_tree(), "name": describe(p)} for p, c in both],
        **(_simplest(*first) if first and not interrupted else {}),
    }, not failed


def _simplest(plan: Plan, verdict: "Certificate") -> Mapping[str, Any]:
    """Print the command that certifies the simplest plan that deviates as this one does, and return the plan. Ctrl-C
    ends the search with the simplest that is known by then. A plan whose ranks failed or hung is printed as it is:
    others might hang for minutes."""
    from trivium.certify.simplest import simplest
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe
    from trivium.certify.ways import EVERY_WAY

    if verdict.error is not None:
        say("this plan again:")
        say(_command(plan))
        return {}
    tried, found, ended = 0, plan, ""
    ways = [way for way in EVERY_WAY if way.name == verdict.way]
    say("looking for a simpler plan that fails, too; Ctrl-C ends the search with the simplest that is known")
    try:
        with progress_of("simplest") as progress:

            def fails(candidate: Plan) -> bool:
                nonlocal tried, found
                tried += 1
                progress(tried, None, describe(candidate))
                failed = not certified([candidate], ways=ways)[0].passed
                found = candidate if failed else found  # each that fails is simpler than those before
                return failed

            simplest(plan, fails)
    except KeyboardInterrupt:
        ended = "interrupted: "
    say(f"{ended}the simplest plan that fails too, of {tried} tried: {describe(found)}")
    say(_command(found))
    return {"simplest": to_tree(found), "interrupted": bool(ended)}


def _command(plan: Plan) -> str:
    """Return the command that certifies this plan, with the difference from the default preset as options."""
    before = dict(leaves(to_tree(resolve(Given(DEFAULT_PRESET)).plan)))
    words = [
        f"plan.{path}={dumps(value)}"
        for path, value in leaves(to_tree(plan))
        if path not in before or before[path] != value
    ]
    return "trivium certify " + " ".join(f"--set {shlex.quote(w)}" for w in words)
