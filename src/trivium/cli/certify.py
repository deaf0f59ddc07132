"""`trivium certify`: does a plan compute what one process computes?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.options import DEFAULT_PRESET, Ranks, Sets
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import progress_of, say, table
from trivium.errors import ConfigError, DataError
from trivium.provenance import write_json

SWEEP_RANKS = 8

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def certify(
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="A shipped preset or a YAML/JSON file.")
    ] = DEFAULT_PRESET,
    sets: Sets = None,
    ranks: Ranks = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Certify a generated set of layouts instead of one plan.")
    ] = False,
    max_ranks: Annotated[
        int, typer.Option("--max-ranks", metavar="N", min=1, help="The largest layouts of the sweep.")
    ] = SWEEP_RANKS,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Put known faults into the code; each must be caught.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the verdict as JSON too.")
    ] = None,
) -> None:
    """Run a plan on a reduced model in fp64 and compare gradients, norm, loss and weights with one process.

    Exit code 1 when it deviates.
    """
    if sweep and mutants:
        raise ConfigError("--sweep and --mutants were both given (True, True); give one of them")
    if json is not None and not json.parent.is_dir():
        raise DataError(f"--json {json}: the folder {json.parent} does not exist; create it first")
    if sweep:
        verdict, passed = _sweep(max_ranks)
    elif mutants:
        verdict, passed = _mutants()
    else:
        verdict, passed = _one(Given(preset, tuple(sets or ()), ranks))
    if json is not None:
        write_json(json, verdict)
    if not passed:
        raise typer.Exit(1)


def _one(given: Given) -> tuple[Mapping[str, Any], bool]:
    from trivium.certify.reduce import reduced
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe, versions

    plan = reduced(resolve(given).plan)
    say(f"certifying {describe(plan)}: {plan.layout.world_size} ranks, fp64")
    (found,) = certified([plan])
    rows = [(q, value, found.worst_by_quantity[q]) for q, value in found.by_quantity.items()]
    for line in table(rows, header=("quantity", "deviation", "parameter")):
        say(line)
    say(f"{'passed' if found.passed else 'FAILED'}: tolerance {found.tolerance:g}, worst {found.worst:.2g} ")
    if found.first is not None:
        say(f"first wrong in step {found.first.step + 1}: {', '.join(found.first.quantities)}")
    return {**found.as_tree(), "versions": versions()}, found.passed


def _sweep(max_ranks: int) -> tuple[Mapping[str, Any], bool]:
    from trivium.certify.layouts import generated_plans
    from trivium.certify.sweep import certify as certified
    from trivium.certify.sweep import describe, versions

    plans = generated_plans(max_ranks)
    with progress_of("certify") as progress:
        found = certified(plans, progress=progress)
    passed = sum(c.passed for c in found)
    for plan, c in zip(plans, found, strict=True):
        if not c.passed:
            say(f"FAILED {describe(plan)}: {c.worst:.2g} ({c.worst_parameter})")
    say(f"{passed} of {len(plans)} layouts of at most {max_ranks} ranks passed")
    say(f"tolerance {found[0].tolerance:g}, worst {max(c.worst for c in found):.2g}")
    results = [{**c.as_tree(), "name": describe(p)} for p, c in zip(plans, found, strict=True)]
    return {
        "passed": passed,
        "failed": len(plans) - passed,
        "max_ranks": max_ranks,
        "tolerance": found[0].tolerance,
        "versions": versions(),
        "results": results,
    }, passed == len(plans)


def _mutants() -> tuple[Mapping[str, Any], bool]:
    from trivium.certify.mutants import try_mutants
    from trivium.certify.sweep import versions

    with progress_of("mutants") as progress:
        found = try_mutants(progress=progress)
    for line in table(
        [_row(v.as_tree()) for v in found], header=("fault", "caught by", "in step", "parameter")
    ):
        say(line)
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
