"""`trivium tokenize`: documents become a tokenizer and token shards."""

import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.checkpoint.format import published, step_of
from trivium.cli.machine import cores
from trivium.cli.options import (
    CORPUS_MADE,
    DEFAULT_OUT,
    EVERY_SECTION,
    Out,
    Preset,
    Reads,
    Redo,
    Sets,
    given_for,
    open_run,
)
from trivium.cli.run_config import RunConfig
from trivium.cli.settings import App, shows
from trivium.cli.stage import STARTED, Result, Run, Stage, State, is_current, perform
from trivium.errors import ConfigError, DataError, nearest
from trivium.progress import Progress
from trivium.provenance import STAMP, read_stamp, work_of
from trivium.units import counted, listed

if TYPE_CHECKING:
    from trivium.corpus.engine import Engine

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Pieces of work done at a time. Default: one for each core, on Ray of the cluster.",
    ),
]

ADOPT = "data adopt"  # the verb that takes tokens as they are

_MIN_EXCESS_TOLD = 1.5  # ratio of a source's samples to its weight from which a line is printed

app = App()


@app.command()
@shows("seed", "tokens", "plan.model.vocabulary")
def tokenize(
    out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False, workers: Workers = None
) -> None:
    """Train a byte-level BPE tokenizer, or take the one of tokens.tokenizer, and write Megatron-compatible shards."""
    Reads("tokenize", EVERY_SECTION, CORPUS_MADE).check(sets)
    perform(tokenizing(workers), open_run(out, given_for(out, preset, sets)), redo=redo)


def tokenizing(workers: int | None) -> Stage:
    """Return the stage with `workers` threads. Its output does not depend on their number."""
    return replace(TOKENIZE, work=partial(_tokenize, workers=worker_count(workers)))


def worker_count(wanted: int | None) -> int:
    """Return the number of workers of --workers; by default the number of cores that this process may use."""
    if wanted is not None and wanted < 1:
        raise ConfigError(f"--workers {wanted}: at least one does the work; give 1 or more")
    return wanted or cores()


def check_vocabulary(run: Run, reached: int) -> None:
    """Refuse to train a model for ids that the tokenizer does not have, or that it has not room for."""
    wanted = run.config.plan.model.vocabulary
    if not run.config.predicts(reached):
        raise ConfigError(
            f"the tokens of {run.folder('tokens')} have {reached} ids, but plan.model.vocabulary is {wanted}; use "
            f"tokens made for this model, or --set plan.model.vocabulary={reached} --set "
            f"tokens.vocabulary={reached}; training a larger vocabulary needs more text"
        )


def check_batch(config: RunConfig, tokens: int, where: str) -> None:
    """Raise DataError if there are fewer tokens for training than one batch has, which would repeat them."""
    sequences, sequence = config.plan.batch.sequences, config.plan.model.sequence
    if tokens < sequences * sequence:
        fewer = f", or --set plan.batch.sequences={tokens // sequence} or less" if tokens >= sequence else ""
        raise DataError(
            f"{where} has {tokens:,} tokens for training, fewer than one batch: plan.batch.sequences x "
            f"plan.model.sequence = {sequences} x {sequence} = {sequences * sequence:,}; give more text{fewer}"
        )


def _tokenize(run: Run, out: Path, progress: Progress, workers: int | None = None) -> Result:
    from trivium.tokens.encode import tokenize

    found: dict[str, Any] = tokenize(
        run.config.tokens,
        run.folder("curated"),
        out,
        seed=run.config.seed,
        progress=progress,
        workers=worker_count(workers),
        work=work_of(run.at.folder("tokens")),
    )
    # The manifest knows of no model; what is said does.
    return {**found, "sequence": run.config.plan.model.sequence}


def _given_tokenizer(run: Run) -> dict[str, str]:
    """The hash of the tokenizer that the config names: what matters is what is in the files."""
    tokens = run.config.tokens
    if tokens.tokenizer is None:
        return {}
    from trivium.tokens.tokenizer import given_tokenizer

    return {"tokenizer": given_tokenizer(tokens.tokenizer, tokens.end_of_text).identity}


def never_read_lines(manifest: Result, sequence: int) -> list[str]:
    """Return lines that say how many tokens no sample of `sequence` positions reads, and why, if there are any."""
    from trivium.tokens.manifest import never_read

    found = never_read(manifest, sequence)
    never, weightless = sum(found.values()), [s for s in found if not manifest["sources"][s]["weight"]]
    tokens = int(manifest["totals"]["train"]["tokens"])
    if not never:
        return []
    return [
        f"  never trained on: {never:,} of {tokens:,} tokens ({100 * never / tokens:.3g} %): the last, incomplete "
        f"sample of each source (plan.model.sequence + 1 = {sequence + 1} tokens)"
        + (f", and all of weight 0 (curate.blend): {listed(weightless)}" if weightless else "")
    ]


def _check(run: Run, state: State) -> None:
    """Raise what would make tokenization fail; `demo` and `corpus run` ask before they harvest anything."""
    _keep_adopted(run)
    if run.config.tokens.tokenizer is not None:
        from trivium.tokens.encode import configured_tokenizer

        configured_tokenizer(run.config.tokens)


def _keep_adopted(run: Run) -> None:
    """ConfigError where the tokens would take the place of those that somebody had, and trained on."""
    folder = run.at.folder("tokens")
    if (read_stamp(folder) or {}).get("verb") == ADOPT:
        raise ConfigError(
            f"--out: {folder} holds tokens that `trivium {ADOPT}` took, and tokens of documents would replace them; "
            f"give another --out (`trivium train --out {shlex.quote(str(run.at.root))}` trains on those)"
        )


def for_a_training(run: Run) -> str:
    """Why tokens are set aside where others take their place; nothing where no training began with them."""
    begun = (run.at.folder("training") / STARTED).is_file()
    return f"the training in {run.at.folder('training')} uses it" if begun else ""


def refuse_if_trained_on(stage: Stage, run: Run, *, redo: bool) -> None:
    """Raise ConfigError if a training with checkpoints was made from the output of a stage, which would be replaced,
    and that training does not begin anew."""
    from trivium.training.record import checkpoints_of

    folder, training = run.at.folder(stage.folder), run.at.folder("training")
    if redo or not (folder / STAMP).is_file() or is_current(stage, run):
        return
    if saved := published(checkpoints_of(training, run.config.training.store)):
        done = counted(step_of(saved[-1].name) or 0, "step")
        raise ConfigError(
            f"{folder} would be replaced, but the training in {training} ({done}) was made from it. Nothing was "
            f"changed. To resume that training: trivium train --out {shlex.quote(str(run.at.root))}; to begin at "
            f"step 0 with the new data, add --redo to this command; to keep both, name another --out"
        )


def _lines(result: Result) -> list[str]:
    from trivium.tokens.blend import SHARES_PER_PERIOD, largest_excess

    totals = result["totals"]
    lines = [f"  vocabulary {result['vocabulary']} ids ({result['dtype']} shards)"]
    lines.append(f"  documents end with {result['end_token']} (id {result['end_of_text']})")
    if result["opening"]:
        lines[-1] += f" and begin with id {', '.join(map(str, result['opening']))}"
    for split in ("train", "validation"):
        part = totals[split]
        lines.append(f"  {split}: {part['tokens']:,} tokens of {part['documents']:,} documents")
        lines += never_read_lines(result, result["sequence"]) if split == "train" else []
    source, excess = largest_excess({name: entry["weight"] for name, entry in result["sources"].items()})
    if excess > _MIN_EXCESS_TOLD:
        lines.append(
            f"  weights are multiples of 1/{SHARES_PER_PERIOD}: source {source} is read {excess:.1f} times as often as "
            "its weight says; put small sources into one folder"
        )
    for name in ("unigram_entropy", "validation_unigram_entropy"):
        if name in result:
            lines.append(f"  unigram entropy of the validation text: {result[name]:.3f} nats per token")
    return lines


TOKENIZE = Stage(
    name="tokenize",
    verb="tokenize",
    folder="tokens",
    sections=("tokens",),
    reads=("curated",),
    work=_tokenize,
    summary=_lines,
    outside=_given_tokenizer,
    check=_check,
    needed=for_a_training,
)


ENGINES = ("here", "native", "ray")


def chosen_engine(name: str, workers: int | None) -> "Engine | None":
    """The engine of this name; None for this process."""
    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: there is no such engine; {nearest(name, ENGINES)}")
    count = worker_count(workers)
    if name == "here":
        if workers is not None and workers > 1:
            raise ConfigError(
                f"--workers {workers}: under --engine here this process does all the work; give --engine native or "
                f"ray, or leave it out"
            )
        return None
    for variable, value in (("DAFT_ANALYTICS_ENABLED", "0"), ("DAFT_PROGRESS_BAR", "0")):
        os.environ.setdefault(variable, value)  # before Daft is imported
    from trivium.corpus.daft_engine import Daft

    of_cluster = name == "ray" and workers is None  # Ray knows its processors
    return Daft(name, workers=None if of_cluster else count, address=os.environ.get("RAY_ADDRESS") or None)
