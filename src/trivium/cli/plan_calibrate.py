"""`trivium plan calibrate`: what a finished run teaches about predictions, kept for later estimates."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.local_path import local_path
from trivium.cli.plan_estimate import MachineOption, with_batch
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say
from trivium.cli.workspace import Workspace
from trivium.cost.estimate import estimate
from trivium.errors import DataError
from trivium.planner.stack_file import LearnedStack, learn, write_stack
from trivium.training.metrics import METRICS, read


def calibrate(
    run: Annotated[
        Path, typer.Option("--run", parser=local_path, metavar="DIR", help="The directory of a finished run.")
    ],
    machine: MachineOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=local_path, metavar="FILE", help="The stack file; default: DIR/stack.yaml."),
    ] = None,
) -> None:
    """Learn how much longer steps take than predicted, from a run's metrics; `plan estimate --stack` reads it."""
    found = learned_from(run, machine)
    path = out or run / "stack.yaml"
    write_stack(path, found)
    say(
        f"measured over predicted: {found.factor:.3f}, the median of {found.steps} steps (quartiles {found.low:.3f} to "
        f"{found.high:.3f}, spread {found.spread:.1%}) on {found.machine}"
    )
    say(f"written to {path}; use it with `trivium plan estimate --stack {shlex.quote(str(path))}`")


def learned_from(run: Path, machine: str | None = None) -> LearnedStack:
    """The factor of a run directory. Raises DataError when it is not one, or has too few steps."""
    from trivium.training.record import read_record

    at = Workspace(run)
    if not at.config.is_file():
        raise DataError(f"{run} is not a run directory: {at.config} is missing; give the --out of `trivium train`")
    priced = machine_of(machine or resolve(Given(str(at.config))).machine)
    plan = read_record(at.folder("training")).plan  # not the config's, which is of the last verb
    return learn(
        read(at.folder("training") / METRICS),
        lambda sequences: estimate(with_batch(plan, sequences), priced).seconds,
        machine=priced.name,
        run=str(run),
    )
