"""The cost of a config's plan on its machine, before anything runs and without torch."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from trivium.cli.machine import DRIVERS, cores, memory_bytes, version_of
from trivium.cli.run_config import HERE, LAYOUTS, Given, RunConfig, is_machine_file, resolve
from trivium.cli.settings import settings_of
from trivium.config import differing, leaves, written
from trivium.cost.estimate import estimate
from trivium.cost.hardware import THIS_MACHINE, Machine, machine_from_file, machine_named, this_machine
from trivium.errors import ConfigError, MachineError
from trivium.plan.sizes import MAX_PLAN_RANKS
from trivium.planner.explain import price_lines
from trivium.planner.this_host import Change, Host, Verdict, judge, nearest_change
from trivium.training.rates import rate_line
from trivium.units import format_seconds

MachineOption = Annotated[
    str | None,
    typer.Option("--machine", metavar="NAME|FILE", help="A machine, or a file of `plan probe`. Default: the config's."),
]

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        metavar="N",
        min=1,
        max=MAX_PLAN_RANKS,
        help="Let the planner choose the layout for this number of GPUs of --machine; values of --set are kept.",
    ),
]


def machine_of(name: str) -> Machine:
    """A machine by name, or by the path of a machine file; "here" (in plans "this-machine") is the one this runs on."""
    if name in (HERE, THIS_MACHINE):
        return this_machine(cores(), memory_bytes())
    return machine_from_file(Path(name)) if is_machine_file(name) else machine_named(name)


def dry_run_lines(given: Given) -> tuple[list[str], list[str]]:
    """Return the settings that differ from the defaults with the price on the planned machine, and the problems of the
    config. Nothing is touched."""
    config = resolve(given)
    lines = setting_lines(config)
    problems = config.problems()
    if problems:
        return lines, problems
    try:
        machine = machine_of(config.machine)
        passes = config.training.objective.forward_passes
        price = estimate(config.plan, machine, share=config.search.memory_fraction, forward_passes=passes)
    except ConfigError as error:
        return lines, str(error).splitlines()
    steps = config.training.steps
    whole = f"{steps} steps of the full batch: about {format_seconds(steps * price.seconds)} by this estimate"
    rate = rate_line(config.training, config.plan)
    told = [f"on the planned machine, {config.machine} (in full: trivium plan show):"]
    told += price_lines(config.plan, machine, price)
    return [*lines, "", *told, whole, rate], []


def setting_lines(config: RunConfig) -> list[str]:
    """List the settings that differ from the defaults, section by section, in few lines: long values are cut, and
    sections that no training reads come last."""
    sections: dict[str, list[str]] = {}
    for path, value in leaves(differing(config)):
        section, _, field = path.rpartition(".")
        text = written(value)
        cut = text if len(text) <= VALUE_COLUMNS else f"{text[: VALUE_COLUMNS - 1]}…"
        sections.setdefault(section, []).append(f"{field}={cut}")
    width = {section: SECTION_COLUMNS if section else 0 for section in sections}
    rows = [f"{section:{width[section]}}{' '.join(fields)}" for section, fields in sorted(sections.items(), key=_rank)]
    indent = " " * (SECTION_COLUMNS + 2)
    lines = [line for row in rows for line in wrap(f"  {row}", LINE_COLUMNS, subsequent_indent=indent)]
    if len(lines) > MOST_SETTING_LINES:
        lines = [*lines[: MOST_SETTING_LINES - 1], "  …"]
    return ["settings that differ from the defaults (in full: trivium config show):", *lines]


def _rank(entry: tuple[str, Any]) -> tuple[bool, bool, str]:
    top = entry[0].partition(".")[0]
    return top not in ("", "training"), top != "plan", entry[0]


NOTHING_DONE = "nothing was started or written"  # the last line of a dry run
LINE_COLUMNS, SECTION_COLUMNS, VALUE_COLUMNS = 116, 22, 50  # widths of the list of settings
MOST_SETTING_LINES = 12
WITHOUT_PRESET = ("recipes", "suite", "tune")  # commands whose model is named by their arguments
TRAINED = ("seed", "plan.", "training.")  # settings whose options every command that trains has
SMI_SECONDS = 2.0  # nvidia-smi takes half a second
VISIBLE = "CUDA_VISIBLE_DEVICES"

AnyMachine = Annotated[
    bool,
    typer.Option(
        "--any-machine", help="Start even if this machine lacks the memory, or would take more than ten days."
    ),
]


def host_found(environment: Mapping[str, str] = os.environ) -> Host | None:
    """Return what this host has free, and which ranks torchrun runs on it; None if its accelerators do not answer."""
    accelerators = _accelerators(environment)
    if accelerators is None:
        return None
    by_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys()
    numbers = [environment.get(k, d) for k, d in (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))]
    if not by_torchrun or not all(n.isdecimal() for n in numbers):  # a wrong number is refused where ranks meet
        return Host(cores(), memory_bytes(), accelerators)
    rank, local, ranks = map(int, numbers)
    return Host(cores(), memory_bytes(), accelerators, max(0, rank - local), ranks)


def verdict_here(config: RunConfig, steps: int, host: Host) -> Verdict:
    """Price the remaining steps of a config's plan on this host."""
    planned = machine_of(config.machine)
    passes = config.training.objective.forward_passes
    return judge(config.plan, steps, host, planned, config.search.memory_fraction, passes)


def host_lines(
    given: Given, steps: int, words: Sequence[str], *, insists: bool, host: Host | None = None, hosts: int = 1
) -> list[str]:
    """Return what this host takes for the remaining steps; MachineError if it cannot, unless the user insists.

    The refusal names the nearest settings that the host can run. words: how the command begins, before its settings.
    host: by default the one this runs on. hosts: that share the ranks equally, where no launcher has placed them yet.
    """
    host = host or host_found()
    if host is None:
        return ["this host: its accelerators do not answer nvidia-smi, so memory and hours were not checked"]
    config = resolve(given)
    if hosts > 1 and not host.ranks:
        host = replace(host, first_rank=None, ranks=config.plan.layout.world_size // hosts)
    found = verdict_here(config, steps, host)
    if found.problems and not insists:
        raise MachineError(_refusal(given, config, steps, words, host, found))
    warned = [f"warning: {problem}; --any-machine was given" for problem in found.problems]
    after = config.training.fastest_after
    moves = (
        f", or less, because after step {after} the training changes to the fastest layout" if 0 < after < steps else ""
    )
    return [f"this host: {found.line}{moves}", *warned]


def _refusal(given: Given, config: RunConfig, steps: int, words: Sequence[str], host: Host, found: Verdict) -> str:
    def judged(change: Change) -> Verdict | None:
        try:
            other = resolve(_changed(given, change))
            if other.problems():
                return None
            return verdict_here(other, min(steps, other.training.steps), host)
        except ConfigError:
            return None

    ranks = () if host.ranks else tuple(sorted(LAYOUTS, reverse=True))
    change = nearest_change(config.plan, steps, ranks, judged)
    remedy = "no layout, micro-batch, recompute mode or batch of it fits; train a smaller model, as --preset demo"
    if change is not None:
        nearest = _changed(given, change)
        fewer = resolve(nearest).training.steps
        part = f" ({fewer:,} of {config.training.steps:,} steps)" if fewer < config.training.steps else ""
        remedy = f"the nearest settings that run on this host in time{part}: {_command(words, nearest)}"
    return "\n".join(
        [
            f"this host ({found.where}) cannot run this training: {'; '.join(found.problems)}",
            remedy,
            *_smaller(given, words, host),
            f"`trivium plan show` prices a plan for its own machine, which is {config.machine}; --any-machine starts "
            f"it here anyway",
        ]
    )


def _smaller(given: Given, words: Sequence[str], host: Host) -> list[str]:
    """Return a line with the command that trains the demo's model on the same text, if this host can run it."""
    demo = Given("demo")
    if "--data" not in words or words[0] != "train" or given.preset == demo.preset or host.ranks:
        return []
    config = resolve(demo)
    found = verdict_here(config, config.training.steps, host)
    if found.problems or found.seconds is None:
        return []
    command = shlex.join(["trivium", *words, "--preset", demo.preset])
    return [f"a small model, in about {format_seconds(found.seconds)}: {command}"]


def _changed(given: Given, change: Change) -> Given:
    """Return what the user gave with a change, which takes the place of settings of the same fields."""
    fields = {each.partition("=")[0] for each in change.sets}
    kept = [each for each in given.assignments if each.partition("=")[0] not in fields]
    return given._replace(assignments=(*kept, *change.sets), ranks=change.ranks or given.ranks)


def _command(words: Sequence[str], given: Given) -> str:
    """Return the command as it is typed, in few words."""
    ranks = [] if given.ranks is None else ["--ranks", str(given.ranks)]
    preset = [] if words[0] in WITHOUT_PRESET else ["--preset", given.preset]
    options = {setting.path: setting.option for setting in settings_of(RunConfig, TRAINED) if not setting.is_switch}
    sets: list[str] = []
    for each in _effective(given):
        path, _, value = each.partition("=")
        is_short = path in options and path.startswith(TRAINED)
        sets += [options[path], value] if is_short else ["--set", each]
    return shlex.join(["trivium", *words, *preset, *ranks, *sets])


def _effective(given: Given) -> list[str]:
    """Return the assignments without those that change nothing."""
    kept, whole = list(given.assignments), resolve(given)
    for each in given.assignments:
        fewer = [*kept]
        fewer.remove(each)
        with suppress(ConfigError):
            if resolve(given._replace(assignments=tuple(fewer))) == whole:
                kept = fewer
    return kept


def _accelerators(environment: Mapping[str, str]) -> tuple[tuple[str, int], ...] | None:
    """Return name and free bytes of each NVIDIA GPU that a rank can use; None if a driver is there and none answers."""
    visible = environment.get(VISIBLE)
    hidden = visible is not None and not visible.strip()
    if hidden or version_of("torch").endswith("+cpu") or not any(Path(d).exists() for d in DRIVERS):
        return ()
    asked = ["nvidia-smi", "--query-gpu=memory.free,name", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
        found = [line.split(", ", 1) for line in told.splitlines() if line.strip()]
        free = tuple((name, int(mebibytes) << 20) for mebibytes, name in found)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return free if visible is None else _seen(free, visible)


def _seen(found: tuple[tuple[str, int], ...], visible: str) -> tuple[tuple[str, int], ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves. Names other than numbers are counted from the first."""
    named = [each.strip() for each in visible.split(",")]
    if all(each.isdecimal() for each in named):
        return tuple(found[int(each)] for each in named if int(each) < len(found))
    return found[: len(named)]
