"""`trivium plan search` and `trivium plan explain`: which layout, and why; no torch."""

import json
from typing import Annotated, Any

import typer

from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say
from trivium.config import build
from trivium.errors import ConfigError
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.near_misses import near_misses
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import Found
from trivium.planner.search import search as find
from trivium.planner.search_text import explain_lines, explain_tree, search_lines, search_tree

Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="A preset or config file; the model and batch of its plan are used."
    ),
]
MachineName = Annotated[
    str | None,
    typer.Option("--machine", metavar="NAME", help="A machine or machine file. Default: the config's."),
]
MOST = 10**9  # of anything that is counted: arithmetic over thousands of plans is of 64 bits
Nodes = Annotated[
    int | None, typer.Option("--nodes", metavar="N", min=1, max=MOST, help="How many of its nodes.")
]
RankCount = Annotated[
    int | None,
    typer.Option("--ranks", metavar="N", min=1, max=MOST, help="How many ranks. Default: one per device."),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", min=1, max=MOST, help="Sequences per step. Default: the config's."),
]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many plans to print.")]
Schedules = Annotated[
    str | None,
    typer.Option(
        "--schedules", metavar="NAMES", help="Only these, as 1f1b,interleaved. Default: all but gpipe."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def search(
    model: Model,
    machine: MachineName = None,
    nodes: Nodes = None,
    ranks: RankCount = None,
    batch: BatchSize = None,
    top: Top = 10,
    schedules: Schedules = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest layouts of a model on a machine: every legal plan, priced; the best simulated."""
    found = _find(model, machine, nodes, ranks, batch, schedules)
    if as_json:
        _print(search_tree(found, top))
        return
    for line in search_lines(found, top):
        say(line)


def explain(
    model: Model,
    machine: MachineName = None,
    nodes: Nodes = None,
    ranks: RankCount = None,
    batch: BatchSize = None,
    top: Top = 10,
    schedules: Schedules = None,
    as_json: AsJson = False,
) -> None:
    """Say why: the winner, the runners-up and what limits each, what was rejected, and near misses."""
    found = _find(model, machine, nodes, ranks, batch, schedules)
    misses = near_misses(found)
    if as_json:
        _print(explain_tree(found, misses, top))
        return
    for line in explain_lines(found, misses):
        say(line)


def _find(
    model: str,
    machine: str | None,
    nodes: int | None,
    ranks: int | None,
    batch: int | None,
    schedules: str | None,
) -> Found:
    """The search asked for. Raises ConfigError where nothing is legal or nothing fits."""
    config = resolve(Given(model))
    where = machine_of(machine or config.machine)
    if nodes is not None:
        where = where.with_nodes(nodes)
    if ranks is None:
        ranks = where.devices if where.sharing == "exclusive" else config.plan.layout.world_size
    names = {"schedules": [name.strip() for name in schedules.split(",")]} if schedules else {}
    try:
        space = build(SearchSpace, names)
    except ConfigError as error:
        raise ConfigError(f"--schedules {schedules}: {error}") from None
    subject = Subject(config.plan.model, batch or config.plan.batch.sequences, config.plan.precision)
    found = find(subject, where, ranks, space)
    if not len(found.ranking.order):
        raise ConfigError(does_not_fit(found))
    return found


def _print(tree: dict[str, Any]) -> None:
    say(json.dumps(tree, indent=1))
