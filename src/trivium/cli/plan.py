"""`trivium plan`: what a run is and what it costs, before anything runs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.options import DEFAULT_OUT, DEFAULT_PRESET, Out, Preset, Ranks, Redo, Sets, given_for, open_run
from trivium.cli.plan_estimate import PresetOption, estimate_plan, scale
from trivium.cli.plan_measure import backtest, calibrate, probe_machine
from trivium.cli.plan_search import search
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.plan.mapping import describe, draw, legend, node_of, problems
from trivium.planner.explain import plan_lines, plan_stage
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.units import counted

REFERENCE = "mt-nlg-530b"  # stands beside the demo's plan
FEW_NODES = 12  # lines of a drawing, unless all are asked for

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command("search", short_help="Find the fastest layouts on a machine, and why they win.")(search)
app.command("estimate", short_help="One plan's seconds, memory and traffic, rank by rank.")(estimate_plan)
app.command("scale", short_help="Predict strong and weak scaling.")(scale)
app.command("backtest", short_help="Compare predictions with published runs (CSV).")(backtest)
app.command("probe", short_help="Measure this machine; write a machine file.")(probe_machine)
app.command("calibrate", short_help="Compare a finished run with its prediction.")(calibrate)


@app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
    ranks: Ranks = None,
    redo: Redo = False,
) -> None:
    """Without a command: price the run in DIR, rank its layout among others, and write DIR/plan/plan.json."""
    verb = context.invoked_subcommand
    if verb is None:
        perform(PLAN, open_run(out, given_for(out, preset, sets, ranks)), redo=redo)
        return
    _refuse_before(verb, context)


def _refuse_before(verb: str, context: typer.Context) -> None:
    """ConfigError for an option of `trivium plan` before a verb, whose own may mean something else."""
    assert isinstance(context.command, TyperGroup), f"{context.command} has the verbs of `trivium plan`"
    there = context.command.commands[verb].params
    known = {option for one in there for option in one.opts}
    for one in context.command.params:
        name, source = one.opts[0], context.get_parameter_source(str(one.name))
        if source is None or source.name != "COMMANDLINE":
            continue
        remedy = f"write `trivium plan {verb} {name} …`" if name in known else f"'{verb}' has none: leave it out"
        given = "" if context.params[str(one.name)] is True else f" {_told(context.params[str(one.name)])}"
        raise ConfigError(f"{name}{given} stands before '{verb}' and would not count; {remedy}")


def _told(value: Any) -> str:
    """What an option was given, as it was written."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@app.command(short_help="Print a plan with its step time and memory.")
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
        lines = plan_lines(config.plan, machine_of(config.machine), config.search.memory_fraction)
        for line in [*([""] if number else []), name, *lines]:
            say(line)


@app.command("map", short_help="Draw which rank sits on which node.")
def map_ranks(
    preset: PresetOption = DEFAULT_PRESET,
    sets: Sets = None,
    ranks: Ranks = None,
    per_node: Annotated[
        int | None,
        typer.Option("--per-node", metavar="N", help="Devices of a node. Default: those of the config's machine."),
    ] = None,
    allow_tensor: Annotated[
        bool, typer.Option("--allow-tensor-across-nodes", help="Let tensor groups span nodes.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Draw every node, however many.")] = False,
) -> None:
    """Draw which rank sits on which node, as plan.layout.order has it; refuse tensor groups that span nodes."""
    config = resolve(Given(preset, tuple(sets or ()), ranks)).checked()
    layout, machine = config.plan.layout, machine_of(config.machine)
    if per_node is None:
        unfit = machine.problems(layout.world_size)
        if unfit:
            raise ConfigError("\n".join(unfit))
    on_node = per_node if per_node is not None else devices_of_node(machine, layout.world_size)
    unit = config.plan.tensor_unit
    unsafe = problems(layout, on_node, tensor_unit=unit, tensor_across_nodes=allow_tensor)
    if unsafe:
        raise ConfigError("\n".join(unsafe))
    place = f"nodes of {on_node}" if per_node is not None else machine.name
    if per_node is None and machine.sharing == "shared":
        place = f"{machine.name}, one node whose {machine.devices} cores the ranks share"
    for line in map_lines(layout, on_node, place=place, every=every):
        say(line)


def devices_of_node(machine: Machine, ranks: int) -> int:
    """How many ranks one node takes: all of them where ranks share its devices."""
    return ranks if machine.sharing == "shared" else machine.devices_per_node


def map_lines(layout: Layout, per_node: int, *, place: str, every: bool = False) -> list[str]:
    """The drawing with its legend, and which axes cross the borders of nodes; many nodes are cut short."""
    nodes = node_of(layout.world_size - 1, per_node) + 1
    shown = list(range(nodes))
    if not every and nodes > FEW_NODES:
        shown = [*shown[: FEW_NODES - 2], *shown[-2:]]
    drawn = draw(layout, per_node, nodes=shown)
    if len(shown) < nodes:
        drawn.insert(FEW_NODES - 2, f"…  {nodes - len(shown)} more nodes in the same order; --all draws them")
    return [
        f"{counted(layout.world_size, 'rank')} on {place}: {counted(nodes, 'node')}; a cell is a device with the "
        f"coordinate of its rank ({legend(layout)})",
        "",
        *drawn,
        "",
        *describe(layout, per_node),
    ]


def _plan(run: Run, out: Path, progress: Progress) -> Result:
    plan = run.config.plan
    space = run.config.search
    found: dict[str, Any] = plan_stage(plan, plan.layout.world_size, cores(), memory_bytes(), space)
    write_json(out / "plan.json", found)
    return found


def _lines(result: Result) -> list[str]:
    return [f"  {line}".rstrip() for line in result["lines"]]


PLAN = Stage(name="plan", verb="plan", folder="plan", sections=("plan", "search"), reads=(), work=_plan, summary=_lines)
