"""`trivium plan`: what a run is and what it costs, before anything runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.options import DEFAULT_OUT, Out, Preset, Ranks, Redo, Sets, given_for, open_run
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.plan.plan import Plan
from trivium.planner.explain import plan_lines, plan_stage
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.units import format_count

REFERENCE = "mt-nlg-530b"  # stands beside the demo's plan

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
    ranks: Ranks = None,
    redo: Redo = False,
) -> None:
    """Plan the run in DIR: its price, how it ranks among others, and MT-NLG 530B beside it. `show` only prints."""
    if context.invoked_subcommand is None:
        perform(PLAN, open_run(out, given_for(out, preset, sets, ranks)), redo=redo)


@app.command()
def show(
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", metavar="NAME", help="A preset or config file; may be given many times."),
    ] = None,
    sets: Sets = None,
    ranks: Ranks = None,
) -> None:
    """Print model, layout, batch, schedule, and the estimated time and memory of a step."""
    for number, name in enumerate(preset or ["demo", REFERENCE]):
        config = resolve(Given(name, tuple(sets or ()), ranks)).checked()
        lines = plan_lines(full_batch(config.plan), machine_of(config.machine))
        for line in [*([""] if number else []), name, *lines, *ramp_lines(config.plan)]:
            say(line)


def full_batch(plan: Plan) -> Plan:
    """The plan of a step after the ramp, which is what is priced and what published figures are of."""
    return plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": None})})


def ramp_lines(plan: Plan) -> list[str]:
    """How the batch grows to its full size."""
    ramp, segments = plan.batch.ramp, plan.batch.segments
    if ramp is None:
        return []
    return [
        f"ramp          from {ramp.start} to {plan.batch.sequences:,} sequences by {ramp.increment} in "
        f"{segments[-1].first_step:,} steps ({format_count(plan.tokens(segments[-1].first_sample))} tokens)"
    ]


def _plan(run: Run, out: Path, progress: Progress) -> Result:
    plan = run.config.plan
    found: dict[str, Any] = plan_stage(plan, plan.layout.world_size, cores(), memory_bytes())
    write_json(out / "plan.json", found)
    return found


def _lines(result: Result) -> list[str]:
    return [f"  {line}".rstrip() for line in result["lines"]]


PLAN = Stage(
    name="plan",
    verb="plan",
    folder="plan",
    sections=("plan",),
    reads=(),
    work=_plan,
    summary=_lines,
)
