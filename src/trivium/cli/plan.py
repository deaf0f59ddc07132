"""`trivium plan`: what a run is and what it costs, before anything runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.model_argument import MODELS
from trivium.cli.options import (
    DEFAULT_OUT,
    DEFAULT_PRESET,
    Out,
    Preset,
    Ranks,
    Redo,
    Sets,
    given_for,
    open_run,
    refuse_given,
    with_options_of,
)
from trivium.cli.paths import local_path
from trivium.cli.plan_measure import probe_machine
from trivium.cli.plan_search import search
from trivium.cli.planned import planned
from trivium.cli.price import Gpus, machine_of
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import say, say_aside, say_found
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.config import preset_names
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.plan.mapping import describe, draw, legend, node_of, problems
from trivium.plan.plan import Plan
from trivium.planner.explain import plan_lines, plan_stage
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.units import counted

MAX_DRAWN_LINES = 12  # unless all are asked for

app = App()
app.command("search", short_help="Find the fastest layouts on a machine, and why they win.")(search)
app.command("probe", short_help="Measure this machine, or what a finished run took.")(probe_machine)


@app.callback(invoke_without_command=True)
@shows("plan")
def plan(
    context: typer.Context,
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
    ranks: Ranks = None,
    redo: Redo = False,
) -> None:
    """Without a command, price the run in DIR, rank its layout among others, and write DIR/plan/plan.json."""
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
    """Return the value of an option as it was typed."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@dataclass(frozen=True)
class Asked:
    """The options of `plan show`."""

    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            "--model",
            metavar="NAME",
            help=f"The model: {MODELS}. Given several times: a summary of each plan.",
            autocompletion=preset_names,
        ),
    ] = None
    gpus: Gpus = None
    sets: Sets = None
    ranks: Ranks = None
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="Price a full training on N tokens, such as 270B.")
    ] = None
    failures: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--failures",
            metavar="SAVE_SECONDS MTBF_HOURS",
            help="How long a checkpoint takes, and how often the job fails: says how often to save.",
        ),
    ] = None
    stack: Annotated[
        Path | None,
        typer.Option("--stack", parser=local_path, metavar="FILE", help="What `plan probe --run` learned from a run."),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", parser=local_path, metavar="FILE", help="Write a page with the schedule drawn over time."
        ),
    ] = None
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", parser=local_path, metavar="FILE", help="Write the figures as data; -: to standard output."
        ),
    ] = None
    map_ranks: Annotated[
        bool, typer.Option("--map", help="Draw instead which rank is on which node, as plan.layout.order has it.")
    ] = False
    per_node: Annotated[
        int | None,
        typer.Option("--per-node", metavar="N", help="--map: devices of a node. Default: those of the machine."),
    ] = None
    allow_tensor: Annotated[
        bool, typer.Option("--allow-tensor-across-nodes", help="--map: let tensor groups span nodes.")
    ] = False
    every: Annotated[bool, typer.Option("--all", help="--map: draw every node, however many.")] = False


@app.command(short_help="Seconds, memory and traffic of a plan, rank by rank.")
@with_options_of(Asked)
@shows("plan", "machine")
def show(asked: Asked) -> None:
    """Show a plan: model, layout, batch and schedule; seconds, memory and traffic of every pipeline rank; time and cost
    of a training; or, with --map, which rank is on which node.

    A map is refused where tensor groups span nodes.
    """
    names = asked.preset or [DEFAULT_PRESET]
    prices = {"--tokens": asked.tokens, "--failures": asked.failures, "--stack": asked.stack}
    prices |= {"--html": asked.html, "--json": asked.json}
    drawing = {"--per-node": asked.per_node, "--allow-tensor-across-nodes": asked.allow_tensor, "--all": asked.every}
    if asked.map_ranks:
        refuse_given(prices, "--map prices nothing; leave out --map or the others")
    else:
        refuse_given(drawing, "only --map reads this; add --map, or leave it out")
    if len(names) > 1:
        one = {**prices, "--map": asked.map_ranks}
        refuse_given(one, f"takes one --preset, and here are {len(names)}; leave all but one out")
    for number, name in enumerate(names):
        given = Given(name, tuple(asked.sets or ()), asked.ranks)
        config = resolve(planned(given, asked.gpus, None, say_aside)).checked()
        machine = machine_of(config.machine)
        if asked.map_ranks:
            _say_map(config.plan, machine, asked)
        elif len(names) == 1:
            _say_estimate(name, config, machine, asked)
        else:
            share, passes = config.search.memory_fraction, config.training.objective.forward_passes
            lines = plan_lines(config.plan, machine, share, passes)
            for line in [*([""] if number else []), name, *lines]:
                say(line)


def _say_estimate(name: str, config: RunConfig, machine: Machine, asked: Asked) -> None:
    from trivium.cli import plan_estimate
    from trivium.planner.stack_file import read_stack

    trained = None if asked.tokens is None else plan_estimate.token_count(asked.tokens, "--tokens")
    share, passes = config.search.memory_fraction, config.training.objective.forward_passes
    wanted = plan_estimate.Asked(name, trained, asked.failures, share, passes)
    told = plan_estimate.tell(config.plan, machine, wanted, read_stack(asked.stack) if asked.stack else None)
    if asked.html is not None:
        plan_estimate.write_page(asked.html, told)
    say_found(plan_estimate.lines(told), plan_estimate.tree(told), asked.json, asked.html)


def _say_map(plan: Plan, machine: Machine, asked: Asked) -> None:
    layout, per_node = plan.layout, asked.per_node
    if per_node is None:
        unfit = machine.problems(layout.world_size)
        if unfit:
            raise ConfigError("\n".join(unfit))
    on_node = per_node if per_node is not None else devices_of_node(machine, layout.world_size)
    unsafe = problems(layout, on_node, tensor_unit=plan.tensor_unit, tensor_across_nodes=asked.allow_tensor)
    if unsafe:
        raise ConfigError("\n".join(unsafe))
    place = f"nodes of {on_node}" if per_node is not None else machine.name
    if per_node is None and machine.sharing == "shared":
        place = f"{machine.name}, one node whose {machine.devices} cores the ranks share"
    for line in map_lines(layout, on_node, place=place, every=asked.every):
        say(line)


def devices_of_node(machine: Machine, ranks: int) -> int:
    """Return the number of ranks on one node: all of them if ranks share its devices."""
    return ranks if machine.sharing == "shared" else machine.devices_per_node


def map_lines(layout: Layout, per_node: int, *, place: str, every: bool = False) -> list[str]:
    """The drawing with its legend, and which axes cross the borders of nodes; many nodes are cut short."""
    nodes = node_of(layout.world_size - 1, per_node) + 1
    shown = list(range(nodes))
    if not every and nodes > MAX_DRAWN_LINES:
        shown = [*shown[: MAX_DRAWN_LINES - 2], *shown[-2:]]
    drawn = draw(layout, per_node, nodes=shown)
    if len(shown) < nodes:
        drawn.insert(MAX_DRAWN_LINES - 2, f"…  {nodes - len(shown)} more nodes in the same order; --all draws them")
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
