"""`trivium chaos`: kill, freeze, preempt, corrupt and starve a small training; nothing may be lost."""

import importlib
import inspect
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from trivium.cli.ended import ended_in_order
from trivium.cli.local_path import local_path
from trivium.cli.options import refuse_no_place_for
from trivium.cli.show import progress_of, say
from trivium.errors import ConfigError, Preempted
from trivium.provenance import code_commit, write_json
from trivium.training.supervision.preemption import ENDING, EndedAtOnce

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MOST_LOSSES = 20  # of a harm that are printed
LAYOUTS = 4  # that --kills takes in turn


class Harm(NamedTuple):
    """A harm that is done so often as its option says. number: what the function calls this."""

    option: str
    told: str
    module: str
    function: str
    number: str


HARMS = (
    Harm("kills", "Kill at random instants.", "kills", "kill_often", "kills"),
    Harm("corrupt", "Damage checkpoints.", "corrupt", "corrupt_often", "corruptions"),
    Harm("resume", "Compare resumed runs bitwise.", "resume", "resume_often", "resumes"),
    Harm("diskfull", "Fill the disk.", "disk_full", "fill_often", "fillings"),
    Harm(
        "preempt",
        "Ask it to end: it saves once and exits with 75.",
        "preempt",
        "preempt_often",
        "preemptions",
    ),
    Harm("freeze", "Stop a rank: it is named, the job goes on.", "freeze", "freeze_often", "freezes"),
    Harm(
        "poison",
        "Poison a document, a sample or a weight: noticed at its step, its culprit named.",
        "poison",
        "poison_often",
        "poisons",
    ),
    Harm("orphans", "Kill the launcher: no rank outlives it.", "orphans", "orphan_often", "orphans"),
)


def chaos(**given: Any) -> None:
    """Do harm to a small training, and count what was lost. Exit code 1 when anything was."""
    layouts, seed, json = given["layouts"], given["seed"], given["json"]
    asked = {harm: int(given[harm.option]) for harm in HARMS}
    if layouts is not None and not given["kills"]:
        raise ConfigError(f"--layouts {layouts}: --kills alone takes it; give --kills N too, or leave it out")
    if not any(asked.values()):
        options = ", ".join(f"--{harm.option} N" for harm in HARMS)
        raise ConfigError(f"nothing to do: every number is 0; give one or more of {options}")
    refuse_no_place_for("--json", json)
    with _trainings_ended():
        harms = {h.option: _done(h, n, layouts or LAYOUTS, seed) for h, n in asked.items() if n}
    counts = Counter[str]()  # at hand; of what several harms count, all
    for harm in harms.values():
        counts.update({k: v for k, v in harm.items() if type(v) is int})
    found: dict[str, Any] = {"commit": code_commit(), "seed": seed, "harms": harms, **counts}
    found["passed"] = all(harm["passed"] for harm in harms.values())
    if json is not None:
        write_json(json, found)
    if not found["passed"]:
        raise typer.Exit(1)


def _options() -> Iterator[inspect.Parameter]:
    """An option for each harm, and those of all."""
    for harm in HARMS:
        option = typer.Option(f"--{harm.option}", metavar="N", min=0, help=harm.told)
        yield _option(harm.option, int, option, 0)
    yield _option(
        "layouts",
        int | None,
        typer.Option(metavar="N", min=1, help=f"--kills: so many layouts in turn; default: {LAYOUTS}."),
        None,
    )
    yield _option("seed", int, typer.Option(metavar="N", help="Of every random choice."), 11)
    yield _option(
        "json",
        Path | None,
        typer.Option(parser=local_path, metavar="FILE", help="Write the counts as JSON."),
        None,
    )


def _option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option])


chaos.__signature__ = inspect.Signature(list(_options()))  # type: ignore[attr-defined]
app.command()(chaos)


@contextmanager
def _trainings_ended() -> Iterator[None]:
    """Inside, a signal ends this process in order. A training that runs in it listens for itself, and its `Preempted`
    ends the verb in the same way."""
    with ended_in_order(ENDING):
        try:
            yield
        except (Preempted, EndedAtOnce) as ended:
            code = ended.exit_code if ended.exit_code > 128 else 128 + signal.SIGTERM
            raise SystemExit(code) from None


def _done(harm: Harm, number: int, layouts: int, seed: int) -> dict[str, Any]:
    """Do a harm so often; what came of it."""
    # The trainings are forked from here, where what they left is computed again: no fork survives an accelerator's use.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)
    from trivium.chaos.life import end_all

    work = getattr(importlib.import_module(f"trivium.chaos.{harm.module}"), harm.function)
    more = {"layouts": layouts} if harm.option == "kills" else {}
    with (
        tempfile.TemporaryDirectory(prefix="trivium-chaos-") as folder,
        progress_of(f"chaos {harm.option}") as progress,
    ):
        try:
            found: dict[str, Any] = work(
                Path(folder), **{harm.number: number}, **more, seed=seed, progress=progress
            )
        finally:
            end_all()  # before their folder goes
    counts = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in found.items() if isinstance(v, int))
    say(f"{harm.option}: {counts}; {found['seconds']:.0f} s")
    for line in found["losses"][:MOST_LOSSES]:
        say(f"  LOST {line}")
    if len(found["losses"]) > MOST_LOSSES:
        say(f"  … and {len(found['losses']) - MOST_LOSSES} more; --json FILE has all")
    return found
