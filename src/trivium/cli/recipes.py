"""`trivium recipes`: published trainings, and whether a run of one lies in its published band."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.corpus import CURATE, HARVEST
from trivium.cli.evaluate import EVALUATE
from trivium.cli.generate import GENERATE
from trivium.cli.options import Corpus, DryRun, Sets, open_run
from trivium.cli.paths import local_path
from trivium.cli.price import NOTHING_DONE, AnyMachine, dry_run_lines, host_found, host_lines, machine_of
from trivium.cli.report import make_report
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import percent, say, table
from trivium.cli.stage import perform
from trivium.cli.tokenize import TOKENIZE
from trivium.cli.train import TRAIN, check_host
from trivium.cli.train_data import check_text
from trivium.config import leaves, parse_assignments
from trivium.cost.estimate import estimate
from trivium.errors import ConfigError, TriviumError
from trivium.provenance import write_json
from trivium.recipes.band import compare
from trivium.recipes.curve import curve_of
from trivium.recipes.recipe import Recipe, band_of_recipe, read_recipe, recipe_names, settings_of
from trivium.units import format_seconds, shots_text

CURVE = "curve.json"  # in the run directory
STAGES = (HARVEST, CURATE, TOKENIZE, TRAIN, EVALUATE, GENERATE)

app = App()


@app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """Without a command, list the recipes with the time that the planner expects for their training."""
    if context.invoked_subcommand is not None:
        return
    rows, problems = [], []
    for name in recipe_names():
        try:
            recipe, config = read_recipe(name), resolve(Given(str(settings_of(name))))
        except ConfigError as error:
            problems.append(str(error))
            continue
        seconds = estimate(config.plan, machine_of(config.machine)).seconds * config.training.steps
        rows.append((name, recipe.hardware, format_seconds(seconds), _status(name), recipe.summary))
    for line in table(rows, header=("recipe", "for", "training", "band", "what")):
        say(line)
    say("  trivium recipes run NAME --data PATH --out DIR")
    if problems:
        raise ConfigError("\n".join(problems))


@app.command()
@shows("seed", "plan", "training")
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe; `trivium recipes` lists them.")],
    data: Corpus = None,
    out: Annotated[
        Path | None, typer.Option("--out", parser=local_path, metavar="DIR", help="Default: runs/NAME.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the curve with the published band; exit code 1 outside of it.")
    ] = False,
    sets: Sets = None,
    dry_run: DryRun = False,
    any_machine: AnyMachine = False,
) -> None:
    """Run a recipe from its text to its curve, or continue it after an interruption.

    DIR/curve.json has the validation losses, bits per byte and cloze accuracy on held-out text, tokens per second and
    the share of the accelerator's peak; DIR/report.html shows them with samples.
    """
    recipe, given = read_recipe(name), Given(str(settings_of(name)), tuple(sets or ()))
    say(f"{name}: {recipe.summary}, for {recipe.hardware}; {recipe.note}")
    band = band_of_recipe(name)
    if check and band is None:
        raise ConfigError(f"--check: no band of {name} is published yet ({recipe.note}); leave --check out")
    if check:
        _refuse_other_settings(sets)
    if dry_run:
        lines, problems = dry_run_lines(given)
        for line in lines:
            say(line)
        if problems:
            raise ConfigError("\n".join(problems))
        say(f"text: {data or recipe.data or recipe.text}")
        say(host_lines(given, resolve(given).training.steps, ["recipes", "run", name], insists=True)[0])
        say(NOTHING_DONE)
        return
    _perform(name, recipe, given, data, out or Path("runs") / name, sets, any_machine=any_machine)
    curve = _curve(name, out or Path("runs") / name, resolve(given))
    if check and band is not None:
        _check(band, curve)


def _status(name: str) -> str:
    band = band_of_recipe(name)
    return "not published" if band is None else f"{len(band['seeds'])} seeds, {band['date']}"


def _refuse_other_settings(sets: list[str] | None) -> None:
    other = [path for path, _ in leaves(parse_assignments(sets or (), RunConfig)) if path != "seed"]
    if other:
        raise ConfigError(
            f"--check compares the recipe as it is published, and --set gives {', '.join(other)}; leave one of them out"
        )


def _perform(
    name: str, recipe: Recipe, given: Given, data: str | None, out: Path, sets: list[str] | None, *, any_machine: bool
) -> None:
    made = open_run(out, given, corpus=data or recipe.data)
    if made.corpus is None:
        raise ConfigError(f"--data is missing: {name} trains on {recipe.text}; give its path")
    made = replace(made, tokens=None)  # a recipe makes its own
    check_text(made, "recipes run", sets)
    words = ("recipes", "run", name, *(() if data is None else ("--data", data)))
    check_host(made, given, insists=any_machine, words=words)
    for stage in STAGES:
        perform(stage, made)
    make_report(made.at)


def _curve(name: str, out: Path, config: RunConfig) -> dict[str, Any]:
    host = host_found()
    on_gpu = host is not None and bool(host.accelerators)
    machine, plan = machine_of(config.machine), config.plan
    peak = machine.peak_flops_per_second(plan.precision.weights, plan.layout.world_size) if on_gpu else None
    curve = curve_of(out, name, peak)
    write_json(out / CURVE, curve)
    share = "" if curve["share_of_peak"] is None else f", {100 * curve['share_of_peak']:.1f} % of the peak"
    cloze = ", ".join(f"{shots_text(shots)} {percent(accuracy)}" for shots, accuracy in curve["cloze_accuracy"].items())
    say(f"  {curve['bits_per_byte']:.4f} bits per byte on held-out text; cloze accuracy: {cloze}")
    say(f"  {curve['tokens_per_second']:,.0f} tokens per second{share}; curve in {out / CURVE}")
    return curve


def _check(band: dict[str, Any], curve: dict[str, Any]) -> None:
    found = compare(band, curve)
    rows = [
        (name, f"{value:.4f}", f"{of['low']:.4f} to {of['high']:.4f}", "inside" if inside else "OUTSIDE")
        for name, value, of, inside in found
    ]
    for line in table(rows, header=("validation loss at step", "this run", f"band of {len(band['seeds'])} seeds", "")):
        say(line)
    outside = [name for name, *_, inside in found if not inside]
    if outside:
        raise TriviumError(f"the curve lies outside of the published band at {', '.join(outside)}")
    say("  the curve lies in the published band")
