"""`trivium train`: the trainer under a layout, going on from the last checkpoint."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.checkpoint.format import published
from trivium.cli.imported import bring, with_weights
from trivium.cli.live import Note, loss_note, note_of, peak_here
from trivium.cli.machine import check_compiler
from trivium.cli.options import (
    DEFAULT_OUT,
    TRAINS_ON,
    Curation,
    DryRun,
    Out,
    Preset,
    Ranks,
    Redo,
    Sets,
    Tokens,
    TrainedOn,
    given_for,
    open_run,
    refuse_given,
    with_curation,
    with_options_of,
)
from trivium.cli.planned import planned
from trivium.cli.price import NOTHING_DONE, AnyMachine, Gpus, dry_run_lines, host_lines, machine_of
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import layout_text, say
from trivium.cli.stage import STARTED, TRAINS, Gone, Result, Run, Stage, State, belongs, perform, state_of
from trivium.cli.tokenize import check_batch, check_vocabulary, never_read_lines
from trivium.cli.train_data import check_data, prepare, tokens_at
from trivium.config import Tree, as_value, leaves, to_tree, written
from trivium.cost.estimate import estimate
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.provenance import STAMP
from trivium.redact import redact
from trivium.report.ranks import Alike, alike
from trivium.stores.folder import continues, download, published_files
from trivium.stores.remote import Location, Remote
from trivium.training.record import CHANGEABLE_PLAN, lasting_section, recipe_of
from trivium.units import counted, format_bytes, format_count

if TYPE_CHECKING:
    from trivium.planner.fastest import Fastest

HostCounts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="MIN:MAX",
        help="Start this on each host: they meet in the run directory, and train as long as MIN of them are alive. The "
        "layout is that of MAX hosts; with fewer, the planner chooses another.",
    ),
]
ACTIVATIONS = "activations"  # a category of memory
FINISHED = "is finished: nothing would be done"  # job files look for it in a dry run
MAX_GROUPS_LISTED = 8  # of ranks with equal memory, in the summary of a training

app = App()


@dataclass(frozen=True)
class Asked:
    """The options of `train`."""

    out: Out = DEFAULT_OUT
    data: TrainedOn = None
    curation: Curation = None
    preset: Preset = None
    gpus: Gpus = None
    sets: Sets = None
    ranks: Ranks = None
    tokens: Tokens = None
    hosts: HostCounts = None
    redo: Redo = False
    dry_run: DryRun = False
    any_machine: AnyMachine = False


@app.command()
@shows("seed", "plan", "training", "machine")
@with_options_of(Asked)
def train(asked: Asked) -> None:
    """Train; an interrupted run resumes from its last checkpoint, in any layout.

    With --data, raw text is first harvested, curated and tokenized, unless that is done. `trivium corpus run` does this
    with several processes. Without --data, the tokens of --out or --tokens are used.
    """
    out, tokens, redo = asked.out, asked.tokens, asked.redo
    if asked.data is None:
        refuse_given({"--curation/--no-curation": asked.curation is not None}, "name the raw text with --data")
        TRAINS_ON.check(asked.sets)
    else:
        refuse_given({"--tokens": tokens}, "--data names what is trained on; give one of the two")
        tokens = tokens_at(asked.data)
    sets = with_curation(asked.sets, asked.curation)
    given = planned(given_for(out, asked.preset, sets, asked.ranks), asked.gpus, out)
    raw = asked.data if tokens is None else None
    words = ("train",) if raw is None else ("train", "--data", raw)
    hosts = 1
    if asked.hosts is not None:
        from trivium.cli.hosts import host_counts

        hosts = host_counts(asked.hosts, resolve(given).plan)[1]
        words = (*words, "--hosts", asked.hosts)
    if raw is not None and (asked.hosts is not None or under_torchrun(os.environ)):
        first = shlex.join(["trivium", "corpus", "run", given.preset, "--data", raw, "--out", str(out)])
        raise ConfigError(
            f"--data {raw}: every process of this job would prepare it; run `{first}` before the job, and start the "
            f"job without --data"
        )
    if asked.dry_run:
        lines, problems = dry_run_lines(given)
        for line in [*lines, *([] if problems else _never_read(given, tokens or out / "tokens"))]:
            say(line)
        if problems:
            raise ConfigError("\n".join(problems))
        if raw is not None:
            check_data(out, given, raw, sets)
            prepare(out, given, raw, dry_run=True, redo=redo)
        for line in would(out, given, tokens) if raw is None else ():
            say(line)
        check_host(
            open_run(out, given, tokens=tokens), given, insists=asked.any_machine, redo=redo, words=words, hosts=hosts
        )
        say(NOTHING_DONE)
        return
    run, weights = with_weights(open_run(out, given, tokens=tokens))
    if raw is not None:
        check_data(out, given, raw, sets)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        check_host(run, given, insists=asked.any_machine, redo=redo, words=words, hosts=hosts)
    if raw is not None:
        prepare(out, given, raw, redo=redo)
        run = replace(run, tokens=None)
    if asked.hosts is not None and under_torchrun(os.environ):
        from trivium.cli.hosts import met_by_torchrun

        run = met_by_torchrun(run, asked.hosts, os.environ)
    if joins_torchrun(os.environ):
        join(run, redo=redo)
        return
    _bring_records(run)
    if asked.hosts is not None and not under_torchrun(os.environ):
        from trivium.cli.hosts import train_on_hosts

        refuse_given({"--redo": redo}, "it begins anew; run it once without --hosts, or set the run directory aside")
        train_on_hosts(run, asked.hosts, TRAIN, partial(_lead, weights=weights), partial(join, redo=False))
        return
    _lead(run, weights, redo=redo)


def _lead(run: Run, weights: str | None, *, redo: bool = False) -> None:
    """Train as the only process, or as the first rank, which does all the writing. weights: see `with_weights`."""
    if weights is not None:
        bring(run, weights)
    perform(TRAIN, run, redo=redo)


def would(out: Path, given: Given, tokens: Path | None) -> list[str]:
    """Return what a training on existing tokens would do. Raises the errors with which it would be refused."""
    from trivium.tokens.manifest import MANIFEST

    if tokens is None and not (out / "tokens" / MANIFEST).is_file():
        return []
    run, weights = with_weights(open_run(out, given, tokens=tokens))
    state = state_of(TRAIN, run)
    if weights is None:
        TRAIN.check(run, state)
    folder = run.at.folder(TRAIN.folder)
    words = {
        "current": f"  {folder} {FINISHED}",
        "goes on": f"  it would resume in {folder}, from the last checkpoint",
        "anew": "  it would begin at step 0" + (f"; what is in {folder} would be set aside" if folder.is_dir() else ""),
    }
    return [words[state]]


def check_host(
    run: Run, given: Given, *, insists: bool, redo: bool = False, words: Sequence[str] = ("train",), hosts: int = 1
) -> None:
    """Say what the rest of the training takes on this host; MachineError if it cannot run here. words: how the command
    begins. hosts: that share its ranks."""
    if steps := steps_left(run, redo=redo):
        words = [*words] if run.at.root == DEFAULT_OUT else [*words, "--out", str(run.at.root)]
        if run.folder("tokens") != run.at.folder("tokens"):
            words += ["--tokens", str(run.folder("tokens"))]
        for line in host_lines(given, steps, words, insists=insists, hosts=hosts):
            say(line)


def steps_left(run: Run, *, redo: bool = False) -> int:
    """Return how many steps the training has still to do; all of them where it has no tokens yet."""
    from trivium.checkpoint.format import step_of
    from trivium.tokens.manifest import MANIFEST

    steps = run.config.training.steps
    if redo or not (run.folder("tokens") / MANIFEST).is_file():
        return steps
    state = state_of(TRAIN, run)
    if state != "goes on":
        return 0 if state == "current" else steps
    saved = published(_checkpoints(run))
    return max(1, steps - (step_of(saved[-1].name) or 0 if saved else 0))


def _never_read(given: Given, tokens: Path) -> list[str]:
    """Return lines about tokens that no sample reads, if the tokens exist already."""
    from trivium.tokens.manifest import MANIFEST, read_tokens_manifest

    if not (tokens / MANIFEST).is_file():
        return []
    return never_read_lines(read_tokens_manifest(tokens), resolve(given).plan.model.sequence)


def under_torchrun(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in environment or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys()


def joins_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started this process as any rank but the first, which does all the writing."""
    return under_torchrun(environment) and environment.get("RANK", "0") != "0"


def join(run: Run, *, redo: bool) -> None:
    """Take a place among the ranks, on the same decision as the first rank: whether there is anything to do."""
    if redo or state_of(TRAIN, run) != "current":
        from trivium.training.supervision.job import start

        job, _ = examined(job_for(run, run.at.folder(TRAIN.folder)), run)
        start(job)


def job_for(run: Run, out: Path) -> Any:
    """The trainer's job; imports torch."""
    check_compiler(wanted=run.config.plan.compiled)
    from trivium.training.loop import TrainingJob

    return TrainingJob(
        plan=run.plan,
        training=run.config.training,
        seed=run.config.seed,
        tokens=run.folder("tokens"),
        out=out,
        step_seconds=partial(_step_seconds, run.config),
        others_wait=(lambda: False) if run.met is None or run.met.grow is None else run.met.grow.exists,
        neighbour=None if run.met is None else run.met.neighbour,
    )


def _step_seconds(config: RunConfig, plan: Plan) -> float | None:
    """Return the predicted seconds of a step; None if the machine is too small for the plan."""
    with suppress(ConfigError):
        return estimate(
            plan, machine_of(config.machine), forward_passes=config.training.objective.forward_passes
        ).seconds
    return None


def examined(job: Any, run: Run) -> tuple[Any, dict[str, str]]:
    """The job with what `training.evaluation` asks of its model, and the tasks of a group that have no data, with the
    reason; DataError where no task has, or one that was named itself has not."""
    about = run.config.training.evaluation
    if about.every == 0:
        return job, {}
    from trivium.cli.benchmarks import Asked, rows_of
    from trivium.evaluation.benchmark import examiner_of, question_digests
    from trivium.evaluation.config import BenchmarkConfig
    from trivium.tokens.tokenizer import load_tokenizer

    config = BenchmarkConfig(shots=about.shots, limit=about.limit, seed=run.config.seed)
    data = None if about.data is None else Path(about.data)
    try:
        ready, missing = rows_of(Asked(about.tasks, data, config, field="tasks"))
    except (ConfigError, DataError) as error:
        raise type(error)(f"training.evaluation: {error}") from None
    examiner = examiner_of(ready, load_tokenizer(run.tokenizer), config)
    return replace(job, examiner=examiner, questions=question_digests(ready, config)), missing


def lasting(what: Mapping[str, Any]) -> Tree:
    """Return the settings with which a training was begun and without which it is never continued."""
    config = what["config"]
    plan = {k: v for k, v in config["plan"].items() if k not in CHANGEABLE_PLAN}
    plan["batch"] = lasting_section(plan["batch"], config["plan"])
    training = recipe_of(config["training"])
    return {"seed": config["seed"], "plan": plan, "training": training, "tokens": what["inputs"]["tokens"]}


def apart(run: Run, before: Path, changed: Sequence[str]) -> list[str]:
    """Return how the training that was set aside could resume, if only settings of the training differ."""
    from trivium.training.record import CHECKPOINTS

    saved = published(before / CHECKPOINTS)
    if not changed or not saved or not all(line.startswith("training.") for line in changed):
        return []  # a state is of one model, batch and precision
    words = ["trivium", "train", "--preset", str(run.at.root), "--tokens", str(run.folder("tokens"))]
    words += ["--out", "ANOTHER"]
    words += ["--set", f"training.start_from={as_value(str(saved[-1]))}", "--set", "training.start_with=state"]
    return [f"to continue from its steps instead: {shlex.join(words)}"]


def ask(run: Run, changed: Sequence[str]) -> None:
    """Ask on a terminal before a training that has checkpoints is set aside; ConfigError elsewhere, or where the answer
    is no, with the settings that differ and the commands that resume."""
    from trivium.checkpoint.format import step_of

    saved = published(_checkpoints(run))
    if not changed or not saved:
        return
    folder, out = run.at.folder(TRAIN.folder), shlex.quote(str(run.at.root))
    told = [
        f"{folder} holds a training of {counted(step_of(saved[-1].name) or 0, 'step')} with other settings (recorded "
        f"-> requested), and a new training would set it aside:",
        *(f"  {line}" for line in changed),
    ]
    reach = [path for path in saved if (step_of(path.name) or 0) < run.config.training.steps]
    if reach and all(line.startswith("training.") for line in changed):
        told.append(f"to continue from its steps under the new settings: {_goes_on(run, reach[-1], changed)}")
    told.append(f"to resume it unchanged: trivium train --out {out} (without the settings above)")
    if sys.stdin.isatty() and sys.stdout.isatty():
        for line in told:
            say(line)
        if typer.confirm("Set it aside and begin at step 0?"):
            return
        raise ConfigError(f"{folder} was left as it is")
    raise ConfigError("\n".join([*told, "to set it aside and begin at step 0, give `trivium train` --redo"]))


def _goes_on(run: Run, checkpoint: Location, changed: Sequence[str]) -> str:
    """Return the command of a new run that continues from a checkpoint with the settings of this one."""
    tree = dict(leaves(to_tree(run.config)))
    fields = dict.fromkeys([*(line.partition(":")[0] for line in changed), "training.steps"])
    sets = [f"{field}={written(tree[field])}" for field in fields if tree.get(field) is not None]
    sets += [f"training.start_from={as_value(str(checkpoint))}", "training.start_with=state"]
    words = ["trivium", "train", "--preset", str(run.at.root), "--tokens", str(run.folder("tokens"))]
    words += ["--out", f"{run.at.root}-2", *(word for one in sets for word in ("--set", one))]
    return shlex.join(words)


def _checkpoints(run: Run) -> Location:
    """Return the place of the run's checkpoints."""
    from trivium.training.record import checkpoints_of

    return checkpoints_of(run.at.folder(TRAIN.folder), run.config.training.store)


def _bring_records(run: Run) -> None:
    """Bring the records of a training at the URL of `training.store` into a run directory that has none, or that lacks
    what was recorded since this training went on elsewhere."""
    from trivium.training.record import RECORDS

    folder, store = run.at.folder(TRAIN.folder), run.config.training.store
    if store is None or not published_files(url := Remote(store) / RECORDS):
        return
    if (folder / STARTED).is_file() and not _went_on_at(url, run):
        return
    (folder / STAMP).unlink(missing_ok=True)  # of the end that the training had here
    download(url, folder)
    say(f"  brought the records of {url} into {folder}")


def _went_on_at(url: Remote, run: Run) -> bool:
    """Whether the training in the run directory has published records that the run directory lacks. The file of events
    tells, because lines are only ever appended to it."""
    from trivium.training.metrics import EVENTS

    folder = run.at.folder(TRAIN.folder)
    if continues(folder / EVENTS, url):
        return False
    with TemporaryDirectory() as copy:
        download(url, Path(copy), published_files(url).keys() & {STARTED})
        return all(belongs(TRAIN, run, place) for place in (folder, Path(copy)))


def _refuse_others_store(run: Run) -> None:
    """Raise ConfigError for a new training where a store has the checkpoints of another one."""
    if run.config.training.store is not None and (saved := published(_checkpoints(run))):
        raise ConfigError(
            f"training.store {redact(run.config.training.store)} holds {counted(len(saved), 'checkpoint')} up to "
            f"{saved[-1].name}, and this training begins at step 0; name another URL, or delete what is there"
        )


def gone(run: Run, steps: int) -> Gone | None:
    """The checkpoint after the last step, which every finished training has, until somebody removes or damages it, or
    the manifest without which it is none: those who read the training look for it."""
    from trivium.checkpoint.format import step_name, step_of

    last = _checkpoints(run) / step_name(steps)
    left, what = 0, f"{last} is gone"
    for path in reversed(published(_checkpoints(run))):
        why = _wrong_with(path)
        if not why:
            left = step_of(path.name) or 0
            break
        what = why if path == last else what
    return None if left >= steps else Gone(what, left)


def _wrong_with(checkpoint: Location) -> str:
    """Return why no training can resume from a checkpoint, as far as its sizes show; empty for an intact one."""
    from trivium.checkpoint.format import MANIFEST
    from trivium.checkpoint.verify import refuse_incomplete

    if not (checkpoint / MANIFEST).is_file():
        return f"{checkpoint / MANIFEST} is gone"
    try:
        refuse_incomplete(checkpoint)
    except CheckpointError as error:
        return str(error)
    return ""


def check(run: Run, state: State) -> None:
    """Refuse a training that could not begin, while what is in its folder is still as it was."""
    from trivium.tokens.manifest import read_tokens_manifest
    from trivium.training.supervision import job

    manifest = read_tokens_manifest(run.folder("tokens"))
    check_vocabulary(run, int(manifest["vocabulary"]))
    wanted, _ = examined(job_for(run, run.at.folder(TRAIN.folder)), run)
    job.check(wanted)
    check_batch(run.config, int(manifest["totals"]["train"]["tokens"]), str(run.folder("tokens")))
    if state == "anew":
        job.check_start(wanted)
        _refuse_others_store(run)


def _train(run: Run, out: Path, progress: Progress) -> Result:
    say(f"  {layout_text(run.plan.layout.model_dump())}, schedule {run.plan.schedule}")

    from trivium.cost.memory import predicted_memory
    from trivium.training.metrics import METRICS
    from trivium.training.supervision.job import start

    job, missing = examined(job_for(run, out), run)
    for name, why in missing.items():
        say(f"  SKIPPED {name}: {why}")
    then: tuple[int, Plan] | None = None
    after = run.config.training.fastest_after
    if 0 < after < run.config.training.steps:
        faster = fastest_for(run.config)
        say(f"  after step {after}: {faster.why}")
        then = None if faster.plan == job.plan else (after, faster.plan)
    live = note_of(run.plan, run.config.training.steps, peak_here(run.config))
    note = live if sys.stderr.isatty() else loss_note
    predicted = predicted_memory(run.plan)
    found: dict[str, Any] = start(
        job, then=then, progress=_noted(progress, out, note), predicted=predicted, lease=run.lease
    )
    return found | ({} if then is None else {"moved": _speeds(out / METRICS, after)})


def fastest_for(config: RunConfig) -> "Fastest":
    """The plan under which a training resumes after `training.fastest_after` steps."""
    from trivium.planner.fastest import fastest

    return fastest(config.plan, machine_of(config.machine), config.search)


def _speeds(metrics: Path, after: int) -> dict[str, float]:
    """The median of the tokens per second before and after a training moved to another layout."""
    from trivium.training.metrics import records

    rates = [(r["step"] <= after, r["tokens_per_second"]) for r in records(metrics) if "tokens_per_second" in r]
    by = {name: [rate for first, rate in rates if first == (name == "before")] for name in ("before", "after")}
    return {name: median(values) for name, values in by.items() if values}


def _noted(progress: Progress, out: Path, describe: Note) -> Progress:
    """Return the same progress, which describes the newest steps where it has no other note."""
    from trivium.training.metrics import METRICS, newest_steps

    def told(done: int, total: int | None, note: str) -> None:
        progress(done, total, note or describe(newest_steps(out / METRICS)))

    return told


def _lines(result: Result) -> list[str]:
    loss, entropy = f"validation loss {result['validation_loss']:.3f}", result["unigram_entropy"]
    of_text = f"{loss} nats per token" + (
        "" if entropy is None else f"; unigram entropy of the same text {entropy:.3f}"
    )
    accuracy = result.get("validation_reward_accuracy")
    lines = [
        f"  {format_count(result['parameters'])} parameters, {counted(result['steps'], 'step')}, "
        f"{format_count(result['tokens'])} tokens, {layout_text(result['layout'])}",
        f"  {of_text if accuracy is None else f'{loss}; held-out pairs in the right order: {accuracy:.1%}'}",
    ]
    if len(moved := result.get("moved", {})) == 2:
        lines.append(
            f"  measured: {format_count(moved['before'])} tokens/s in the first layout, {format_count(moved['after'])} "
            f"in the fastest: {moved['after'] / moved['before']:.1f} times as many"
        )
    if idle := result["steps"] - result.get("updates", result["steps"]):
        lines.append(f"  {idle} of these steps changed nothing: an overflow of fp16, or a spike that was skipped")
    groups = alike(result.get("memory", []))
    where = result.get("memory_layout", result["layout"])
    first = "" if where == result["layout"] else f" in the first layout, {layout_text(where)}"
    if groups:
        lines.append(f"  memory counted (predicted){first}:")
    lines += [f"    {_memory_text(group)}" for group in groups[:MAX_GROUPS_LISTED]]
    if len(groups) > MAX_GROUPS_LISTED:
        lines.append(
            f"    and of {sum(len(g.ranks) for g in groups[MAX_GROUPS_LISTED:])} more ranks in training/summary.json"
        )
    if any(g.counted.get(ACTIVATIONS, 0) < g.predicted.get(ACTIVATIONS, 0) for g in groups):
        lines.append("    activations are predicted for a full batch in which every target counts; this step had fewer")
    return lines


def _memory_text(group: Alike) -> str:
    parts = (f"{k} {format_bytes(v)} ({format_bytes(group.predicted.get(k, 0))})" for k, v in group.counted.items())
    return f"{group.name}: {', '.join(parts)}"


TRAIN = Stage(
    name="train",
    verb="train",
    folder="training",
    sections=TRAINS,
    reads=("tokens",),
    work=_train,
    summary=_lines,
    writes="in place",
    lasting=lasting,
    extent=lambda run: run.config.training.steps,
    gone=gone,
    check=check,
    ask=ask,
    apart=apart,
    long_notes=True,
)
