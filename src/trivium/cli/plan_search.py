"""`trivium plan search`: which layout is fastest, and why. Imports no torch."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from trivium.cli.model_argument import model_named
from trivium.cli.options import AsJson, Sets, refuse_no_place_for, with_options_of
from trivium.cli.paths import local_path
from trivium.cli.planned import pinned
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, RunConfig, based_on, is_machine_file, resolve
from trivium.cli.settings import as_typed, shows
from trivium.cli.show import say_aside, say_either
from trivium.config import build_named, leaves, merge, parse_assignments, preset_files, preset_names, to_tree
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.plan.sizes import MAX_PLAN_RANKS
from trivium.planner.config import SearchSpace
from trivium.planner.near_misses import near_misses
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import Found, best_search
from trivium.planner.search_text import explain_lines, explain_tree, search_lines, search_tree

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "--preset",
        metavar="NAME",
        help="The model; its machine, and batch and precision of its plan are used.",
        autocompletion=preset_names,
    ),
]
MAX_COUNT = 10**9  # because arithmetic over thousands of plans has 64 bits
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, max=MAX_COUNT, help="How many of its nodes.")]
RankCount = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        min=1,
        max=MAX_PLAN_RANKS,
        help="How many ranks. Default: one per GPU; on processors, those of the model's plan.",
    ),
]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many plans to print.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say why the winner wins, what was rejected, and what nearly fitted.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=local_path,
        metavar="FILE",
        help="Write the chosen plan as a preset for other commands: what it changes of --model.",
    ),
]


# What a search takes of a config; all else of a plan it chooses.
TAKEN = (
    "plan.model",
    "plan.precision",
    "plan.compiled",
    "plan.cuda_graphs",
    "plan.batch.sequences",
    "machine",
    "search",
)


@dataclass(frozen=True)
class Asked:
    """The options of `search`."""

    model: Model
    nodes: Nodes = None
    ranks: RankCount = None
    sets: Sets = None
    top: Top = 10
    out: Out = None
    explain: Explain = False
    as_json: AsJson = False


@with_options_of(Asked)
@shows(*TAKEN)
def search(asked: Asked) -> None:
    """Find the fastest layouts of a model on a machine: every legal plan is priced, and the best are simulated.

    --set search.FIELD=VALUE restricts what it tries; `trivium config explain search` lists the fields.
    """
    found = _find(asked)
    if asked.explain:
        misses = near_misses(found)
        lines, data = explain_lines(found, misses, asked.top), explain_tree(found, misses, asked.top)
    else:
        lines, data = search_lines(found, asked.top), search_tree(found, asked.top)
    say_either(lines, data, asked.as_json)


def _find(asked: Asked) -> Found:
    """The search asked for, its winner written where that was asked for. Raises ConfigError where nothing is legal or
    nothing fits."""
    if asked.out is not None and asked.out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {asked.out}: a preset is YAML and known by its name; end it in .yaml")
    refuse_no_place_for("--out", asked.out)
    config, ranks = resolve(_given(asked)), asked.ranks
    if asked.out is not None:
        _refuse_what_is_read(asked.out, asked.model, config.machine)
    where = machine_of(config.machine)
    if asked.nodes is not None:
        where = where.with_nodes(asked.nodes)
        if asked.out is not None:
            _refuse_more_nodes(asked.out, config.machine, machine_of(config.machine).nodes, asked.nodes)
    if ranks is None:
        ranks = where.devices if where.sharing == "exclusive" else config.plan.layout.world_size
    stated = dict(leaves(parse_assignments(asked.sets or (), RunConfig)))
    space = build_named(SearchSpace, merge(to_tree(config.search), pinned(stated)), "search")
    found = best_search(config.plan, where, ranks, space)
    if not len(found.ranking.order):
        raise ConfigError(does_not_fit(found))
    if asked.out is not None:
        _write(asked.out, asked.model, config, found.chosen.plan)
    return found


def _given(asked: Asked) -> Given:
    """The model's config with what options say of it. Raises ConfigError for an override that would not count."""
    for path, value in leaves(parse_assignments(asked.sets or (), RunConfig)):
        if not any(f"{path}.".startswith(f"{taken}.") for taken in TAKEN):
            raise ConfigError(
                f"{as_typed(path, asked.sets)}={value}: a search takes only {', '.join(TAKEN)} of a config, and "
                f"chooses the rest of a plan; leave it out, or price one plan: `trivium plan show --preset "
                f"{asked.model} --set …`"
            )
    return Given(asked.model, tuple(asked.sets or ()))


def _refuse_what_is_read(out: Path, model: str, machine: str) -> None:
    """ConfigError where the winner would take the place of a file from which it inherits, or of its machine."""
    named = model_named(model)
    read = preset_files(named.place) if named.kind == "config" else []
    read += [Path(machine)] if is_machine_file(machine) else []
    if out.resolve() in [file.resolve() for file in read]:
        raise ConfigError(
            f"--out {out}: the search reads this file (--model {model}, what it inherits from, its machine), and the "
            f"winner would take its place; name another, as --out {out.with_stem(f'{out.stem}-winner')}"
        )


def _refuse_more_nodes(out: Path, machine: str, has: int, asked: int) -> None:
    """ConfigError where the winner's preset, which names its machine as it is, could not be priced there."""
    if asked > has:
        raise ConfigError(
            f"--out {out}: a preset names a machine and not how many nodes, and {machine} has {has}, of which --nodes "
            f"is {asked}; write a machine file with `base: NAME` and `nodes: {asked}`, and give that as --machine"
        )


def completed(plan: Plan, config: RunConfig) -> Plan:
    """Return the plan that a search found for a config, with the settings of the config that a search does not vary.
    Those that the plan cannot have are named on standard error."""
    own: dict[str, dict[str, Any]] = {
        "plan.batch.ramp": {"batch": plan.batch.model_copy(update={"ramp": config.plan.batch.ramp})}
    }
    for name, update in own.items():
        kept = plan.model_copy(update=update)
        problems = kept.check()
        if problems:
            say_aside(f"{name} is left out: {problems[0]}")
        else:
            plan = kept
    return plan


def _write(path: Path, model: str, config: RunConfig, plan: Plan) -> None:
    """Write a preset that makes `config`, which is of `model`, one of `plan`; say so on standard error."""
    wanted = config.model_copy(update={"plan": completed(plan, config)})
    base, changed = based_on(model, wanted, path.parent)
    tree = {"base": base, "machine": config.machine, **changed}
    path.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    again = f"trivium plan show --preset {shlex.quote(str(path))}"
    say_aside(f"the fastest plan is written to {path}: `{again}`")
