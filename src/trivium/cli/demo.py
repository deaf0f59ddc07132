"""`trivium demo`: the whole path, each stage only when it is not done yet."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from textwrap import wrap
from typing import Annotated

import typer

from trivium.cli.bias import BIAS
from trivium.cli.corpus import CURATE, HARVEST, large_losses
from trivium.cli.doctor import examine
from trivium.cli.ending import apart
from trivium.cli.evaluate import EVALUATE
from trivium.cli.generate import GENERATE, SAMPLES
from trivium.cli.options import DEFAULT_OUT, Corpus, DryRun, Out, Preset, Ranks, Sets, given_for, open_run
from trivium.cli.plan import PLAN
from trivium.cli.price import NOTHING_DONE, AnyMachine, dry_run_lines
from trivium.cli.prove import PROVE
from trivium.cli.report import make_report
from trivium.cli.settings import App, shows
from trivium.cli.show import say, seconds_line
from trivium.cli.stage import Run, Stage, perform
from trivium.cli.tokenize import TOKENIZE
from trivium.cli.train import TRAIN, check_host
from trivium.cli.train_data import check_text
from trivium.errors import ConfigError, nearest
from trivium.training.config import STEPS_BEFORE_KILL
from trivium.untrusted import read_json

STAGES: tuple[Stage, ...] = (HARVEST, CURATE, TOKENIZE, PLAN, TRAIN, PROVE, EVALUATE, BIAS, GENERATE)
MOVES_AFTER_STEPS = 40
LAYOUT_FIELDS = ("plan.layout", "training.fastest_after")
COLUMNS = 116  # width of a line of a sample
NAMES = ("doctor", *(stage.name for stage in STAGES), "report")

app = App()


@app.command()
@shows("seed", "harvest", "curate", "plan", "training")
def demo(
    out: Out = DEFAULT_OUT,
    corpus: Corpus = None,
    preset: Preset = None,
    sets: Sets = None,
    ranks: Ranks = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="STAGE", help=f"Do this stage and all after it again: {', '.join(NAMES)}."),
    ] = None,
    dry_run: DryRun = False,
    any_machine: AnyMachine = False,
) -> None:
    """Walk the whole path on this machine: raw text, corpus, tokens, training, proof, evaluation, report."""
    if start is not None and start not in NAMES:
        raise ConfigError(f"--from {start}: there is no such stage; {nearest(start, NAMES)}")
    given = given_for(out, preset, sets, ranks)
    if dry_run:
        lines, problems = dry_run_lines(given)
        for line in lines:
            say(line)
        if problems:
            raise ConfigError("\n".join(problems))
    run = saving_early(moving(open_run(out, given, corpus=corpus), sets, ranks), sets)
    check_text(run, "demo", sets)
    run = replace(run, tokens=None)  # it makes its own, whatever was trained here before
    trains_anew = start is not None and NAMES.index(start) <= NAMES.index(TRAIN.name)
    words = ("demo", *(() if corpus is None else ("--data", corpus)))
    check_host(run, given, insists=any_machine, redo=trains_anew, words=words)
    if dry_run:
        say(NOTHING_DONE)
        return
    walk(run, redo_from=start)


def saving_early(run: Run, sets: Sequence[str] | None) -> Run:
    """The run that saves a checkpoint from which `prove` can resume. Raises ConfigError if the user's settings allow
    none."""
    training = run.config.training
    steps, every = training.steps, training.checkpoint_every
    if training.milestones != "none" or every + STEPS_BEFORE_KILL < steps:
        return run
    most = steps - STEPS_BEFORE_KILL - 1
    if most < 1 or any(each.startswith("training.checkpoint_every=") for each in sets or ()):
        more = f"training.steps={STEPS_BEFORE_KILL + 2} and " if most < 1 else ""
        raise ConfigError(
            f"training.checkpoint_every ({every}): the demo also proves that a training of {steps} steps resumes, from "
            f"a checkpoint more than {STEPS_BEFORE_KILL} steps before the last, and none would be saved; set "
            f"{more}training.checkpoint_every={max(1, most)}"
        )
    say(f"training.checkpoint_every is {most} instead of {every}, so that `prove` has a checkpoint to resume from")
    training = training.model_copy(update={"checkpoint_every": most})
    return replace(run, config=run.config.model_copy(update={"training": training}))


def moving(run: Run, sets: Sequence[str] | None, ranks: int | None) -> Run:
    """The run whose training moves to the fastest layout after its first steps, unless the user chose a layout, or it
    has begun already."""
    chosen = ranks is not None or any(each.startswith(LAYOUT_FIELDS) for each in sets or ())
    training = run.config.training
    if chosen or run.at.folder(TRAIN.folder).is_dir() or training.steps <= 2 * MOVES_AFTER_STEPS:
        return run
    training = training.model_copy(update={"fastest_after": MOVES_AFTER_STEPS})
    return replace(run, config=run.config.model_copy(update={"training": training}))


def walk(run: Run, *, redo_from: str | None = None) -> None:
    """Every stage in order; from `redo_from` on they are done again even when they are up to date."""
    first_redone = NAMES.index(redo_from) if redo_from is not None else len(NAMES)
    say("doctor: …")
    examine(run.at)
    for stage in STAGES:
        redo = NAMES.index(stage.name) >= first_redone
        if stage in (TRAIN, PROVE):
            perform(stage, run, redo=redo)
        else:
            apart(partial(perform, stage, run, redo=redo))
    say("report: …")
    lines = make_report(run.at)
    say(seconds_line("all stages", sum(run.at.seconds().values())))
    for line in ["", "What the model writes", *written(run), "", *lines, *large_losses(run)]:
        say(line)


def written(run: Run) -> Iterator[str]:
    """The texts that the model wrote, each a paragraph that begins with its prompt."""
    for sample in read_json(run.folder(GENERATE.folder) / SAMPLES):
        text = " ".join(f"{sample['prompt']}{sample['continuation']}".split())
        yield from wrap(text, COLUMNS, initial_indent="  ", subsequent_indent="    ")
