"""`trivium suite`: several sizes of a family on the same batches, examined at every checkpoint, on one page."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.benchmarks import Asked, about_checkpoint, rows_of
from trivium.cli.bias import files_of, open_writer
from trivium.cli.options import DryRun, Out, Ranks, Sets, open_run
from trivium.cli.price import NOTHING_DONE, AnyMachine, host_lines, machine_of
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import progress_of, say, table
from trivium.cli.stage import Run, perform
from trivium.cli.train import TRAIN, steps_left
from trivium.cli.train_data import check_data, prepare, tokens_at
from trivium.cli.workspace import Workspace, read_result
from trivium.config import merge, parse_assignments
from trivium.errors import ConfigError, DataError
from trivium.provenance import fingerprint, write_json, write_whole
from trivium.suite import family
from trivium.tokens.tokenizer import FILE
from trivium.units import counted, format_bytes, format_count, format_seconds, listed

if TYPE_CHECKING:
    from trivium.suite.probes import Questions

DATA = "data"  # in the suite's folder: the corpus and tokens that are made for it
STATE_BYTES = 12  # per parameter in a checkpoint, besides the weights: fp32 master and both moments of Adam

app = App()


@app.command()
@shows("seed", "plan", "training", "bias", "evaluation")
def suite(
    name: Annotated[str, typer.Argument(metavar="FAMILY", help=f"The family: {', '.join(family.FAMILIES)}.")],
    sizes: Annotated[str, typer.Option("--sizes", metavar="14m,70m,160m", help="The sizes, by commas.")],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="PATH", help="A folder of token shards, a run that has one, or text as for `corpus`."
        ),
    ] = None,
    out: Out = Path("runs/suite"),
    ranks: Ranks = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    any_machine: AnyMachine = False,
) -> None:
    """Train several sizes on the same batches; examine every checkpoint; draw all curves on one page.

    Each size is a run in OUT/SIZE with the family's published settings. --set applies to all sizes; a shorter
    training (--steps 2000) has its warm-up and checkpoints in proportion. Published tasks are asked where
    --set training.evaluation.data=DIR names their rows. Run the same command again to continue after an
    interruption.
    """
    presets = family.chosen(name, sizes)
    givens = {size: _given(preset, sets or [], ranks) for size, preset in presets.items()}
    configs = {size: resolve(given).checked() for size, given in givens.items()}
    _refuse_other_order(configs)
    if dry_run:
        for line in _price_lines(configs):
            say(line)
        return
    words = ["suite", name, "--sizes", sizes, *(() if data is None else ("--data", data)), "--out", str(out)]
    settings = [*(() if ranks is None else ("--ranks", str(ranks))), *(f"--set={one}" for one in sets or ())]
    command = shlex.join(["trivium", *words, *settings])
    tokens = _tokens_of(data, out)
    if tokens is None:
        planned = {size: open_run(out / size, given) for size, given in givens.items()}
        check_data(made := out / DATA, next(iter(givens.values())), data, sets, verb="suite")
        _host_lines(planned, givens, words, insists=any_machine)  # rejects a training before the text is prepared
        prepare(made, next(iter(givens.values())), data)
        tokens = made / "tokens"
    given_tokenizer = tokens / FILE
    if given_tokenizer.is_file():  # the published models have more rows than their tokenizer has ids
        stated = {"tokens": {"tokenizer": str(given_tokenizer.absolute())}}
        givens = {s: g._replace(defaults=merge(g.defaults, stated)) for s, g in givens.items()}
    runs = {size: open_run(out / size, given, tokens=tokens) for size, given in givens.items()}
    questions = {size: _questions(run) for size, run in runs.items()}  # rejects questions before training
    lines = _host_lines(runs, givens, words, insists=any_machine)
    for size, run in runs.items():
        say(f"{name}-{size}:")
        for line in lines[size]:
            say(line)
        perform(TRAIN, run)
    # Only now: ranks are forked, which is impossible once this process has used a GPU.
    for size, run in runs.items():
        say(f"{name}-{size}:")
        _examine(run, questions[size])
        page = _write_page(name, runs, out, command)
    say(f"  {page} and suite.json")


def _given(preset: str, sets: Sequence[str], ranks: int | None) -> Given:
    """Return the settings of a size: its preset, the user's, and what follows from the length of the training."""
    given = Given(preset, tuple(sets), ranks)
    config = resolve(given)
    follows = [f"{path}={value}" for path, value in family.schedule(config.plan, config.training.steps).items()]
    return given._replace(defaults=parse_assignments([*follows, "bias.analyses=[association]"], RunConfig))


def _orders(configs: Mapping[str, RunConfig]) -> dict[str, Any]:
    return {s: family.order_of(c.plan, c.seed, c.training.steps) for s, c in configs.items()}


def _refuse_other_order(configs: Mapping[str, RunConfig]) -> None:
    if problems := family.order_problems(_orders(configs)):
        raise ConfigError("\n".join(problems))


def _host_lines(
    runs: Mapping[str, Run], givens: Mapping[str, Given], words: Sequence[str], *, insists: bool
) -> dict[str, list[str]]:
    """Return what each size takes on this host, if it has steps left. The largest is examined first, so that the
    settings that a refusal proposes suit all sizes."""
    left = {size: steps_left(run) for size, run in runs.items()}
    return {
        size: host_lines(givens[size], left[size], words, insists=insists) if left[size] else []
        for size in reversed([*runs])
    }


def _steps(config: RunConfig) -> list[int]:
    return family.checkpoint_steps(config.training.steps, config.training.milestones)


def _price_lines(configs: Mapping[str, RunConfig]) -> list[str]:
    """Return what the suite is and costs, before anything runs."""
    from trivium.cost.estimate import estimate
    from trivium.plan.parameters import count

    rows, seconds, size_bytes = [], 0.0, 0.0
    for size, config in configs.items():
        plan, training, parameters = config.plan, config.training, count(config.plan.model)
        taken = estimate(plan, machine_of(config.machine)).seconds * training.steps
        kept = len(_steps(config)) * parameters * (STATE_BYTES + (4 if plan.precision.weights == "fp32" else 2))
        seconds, size_bytes = seconds + taken, size_bytes + kept
        tokens = plan.tokens(plan.batch.at(training.steps).first_sample)
        rows.append(
            (
                *(size, f"{parameters:,}", f"{training.lr:.3g}", format_count(tokens), config.machine),
                *(plan.layout.world_size, format_seconds(taken), format_bytes(kept)),
            )
        )
    steps = _steps(next(iter(configs.values())))
    header = ("size", "parameters", "learning rate", "tokens", "machine", "ranks", "training", "checkpoints")
    return [
        *table(rows, header=header),
        f"  {counted(len(steps), 'checkpoint')} of each size: after steps {listed(steps, 14)}",
        f"  all sizes in turn: about {format_seconds(seconds)}, and {format_bytes(size_bytes)} of checkpoints",
        f"  {NOTHING_DONE}",
    ]


def _tokens_of(data: str | None, out: Path) -> Path | None:
    """Return the folder of tokens that --data names; None for text, which is curated and tokenized once, in the suite's
    own folder."""
    if data is not None:
        return tokens_at(data)
    if not Workspace(out / DATA).config.is_file():
        raise ConfigError(f"--data is missing: {out} has no tokens yet; name a folder of token shards, or text")
    return None


def _examine(run: Run, questions: "Questions") -> None:
    """Ask every checkpoint of the schedule that was not asked before."""
    from trivium.checkpoint.format import MANIFEST, step_name
    from trivium.suite.curves import probe_file
    from trivium.suite.probes import probe

    steps, gone = _steps(run.config), list[int]()
    with progress_of("probes") as progress:
        for number, step in enumerate(steps):
            checkpoint, file = run.at.checkpoints / step_name(step), probe_file(run.at.root, step)
            if not (checkpoint / MANIFEST).is_file():
                gone += [] if file.is_file() else [step]
                continue
            about = about_checkpoint(checkpoint)
            key = fingerprint([questions.key, about["sha256"]])
            if _key_of(file) == key:
                continue
            progress(number, len(steps), f"step {step}")
            answers = probe(questions, open_writer(run, checkpoint), step)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"key": key, **about, **answers})
    say(f"  probes: {len(steps) - len(gone)} of {counted(len(steps), 'checkpoint')} examined")
    if gone:
        say(f"  not examined: the checkpoints after steps {listed(gone)} are not in {run.at.checkpoints}")


def _key_of(file: Path) -> str:
    """Return the key of answers that are there already, or "" if there are none that can be read."""
    try:
        return str(read_result(file).get("key", "")) if file.is_file() else ""
    except DataError:  # an interrupted disk; they are measured again
        return ""


def _questions(run: Run) -> "Questions":
    """Return what a run's checkpoints are asked: about held-out passages if they are beside the tokens, and published
    tasks if the config names their rows."""
    from trivium.evaluation.config import BenchmarkConfig, IncontextConfig
    from trivium.evaluation.incontext import study_of
    from trivium.suite.probes import Questions
    from trivium.suite.sequences import choose, validation_of
    from trivium.tokens.samples import TokenDataset

    config, tokens = run.config, run.folder("tokens")
    data = TokenDataset.open(tokens, "train", sequence=config.plan.model.sequence, seed=config.seed)
    items, about = tokens.parent / "harvest" / "evaluation_items.jsonl", config.training.evaluation
    asking = BenchmarkConfig(shots=about.shots, limit=about.limit, seed=config.seed)
    benchmarks: Sequence[Any] = ()
    study = None
    if about.data is not None:
        benchmarks, _ = rows_of(Asked(about.tasks, Path(about.data), asking, field="training.evaluation.tasks"))
        choices = next((b for b in benchmarks if b.definition.scoring == "likelihood"), None)
        shots = tuple(s for s in about.shots if isinstance(s, int))
        if choices is not None and shots:
            # The study is repeated at every checkpoint, so it has one draw of shots, from examples that are not asked.
            limit = max(1, min(about.limit, len(choices.task.pool) // 2))
            small = IncontextConfig(shots=shots, limit=limit, seed=config.seed, compare_at=1, draws=1, orders=1)
            study = study_of(choices.definition, choices.rows, small)
    return Questions(
        evaluation=config.evaluation,
        items=items if items.is_file() else None,
        benchmarks=benchmarks,
        asking=asking,
        study=study,
        bias=config.bias,
        bias_files=files_of(run),
        sequences=choose(data, validation_of(data), config.plan, config.training.steps),
        seed=config.seed,
    )


def _write_page(name: str, runs: Mapping[str, Run], out: Path, command: str) -> Path:
    """Write suite.html and suite.json from what all sizes have recorded so far. command: the one that makes them."""
    from trivium.suite.curves import Member, collect
    from trivium.suite.page import order_line, render

    members = [Member(size, run.at.root, run.config.plan, run.config.training) for size, run in runs.items()]
    found = collect(name, members, _steps(next(iter(runs.values())).config))
    write_json(out / "suite.json", found)
    page = out / "suite.html"
    write_whole(page, render(found, command))
    say(f"  {order_line(found)}")
    return page
