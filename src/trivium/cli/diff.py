"""`trivium diff`: compare two checkpoints, two corpora, or two configs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli import checkpoint
from trivium.cli.checkpoint import Json
from trivium.cli.model_argument import checkpoint_of, is_asked
from trivium.cli.options import DEFAULT_OUT, Out
from trivium.cli.paths import local_path
from trivium.cli.run_config import Given, resolve
from trivium.cli.settings import App
from trivium.cli.show import say
from trivium.config import differences, to_tree
from trivium.errors import DataError
from trivium.families.common.hf_config import describes_model
from trivium.provenance import write_json

CORPUS_FOLDERS = ("curated", "tokens")  # folders of a run directory

app = App()


@app.command()
def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A checkpoint (a step of --out or its directory), a run's directory, or a config (a preset or file).",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
    out: Out = DEFAULT_OUT,
    json: Json = None,
) -> None:
    """Compare two checkpoints: settings, then every tensor; the corpora of two runs: every byte; or two configs: every
    field. Exit code 1 when they differ.

    A run's directory next to a checkpoint stands for its newest one, and next to a config for its config.
    """
    one, two = local_path(a), local_path(b)
    for place in (one, two):
        if describes_model(place):
            raise DataError(
                f"{place} is a folder of Hugging Face, and checkpoints are compared: "
                f"`{shlex.join(['trivium', 'checkpoint', 'import', str(place), '--to', 'DIR'])}` writes one of it"
            )
    if checkpoint.names_one(a) or checkpoint.names_one(b) or (is_asked(one) and is_asked(two)):
        if checkpoint.compare(a, b, out, json):
            raise typer.Exit(1)
        return
    lines = _corpora(one, two) if one.is_dir() and two.is_dir() else _configs(a, b)
    if json is not None:
        write_json(json, {"differences": lines})
    if lines:
        raise typer.Exit(1)


def _corpora(a: Path, b: Path) -> list[str]:
    from trivium.corpus.publish.views import differences_between

    lines, compared = [], []
    for folder in CORPUS_FOLDERS:
        missing = [run / folder for run in (a, b) if not (run / folder).is_dir()]
        if len(missing) == 1:
            raise DataError(
                f"{missing[0]} does not exist, so the corpora cannot be compared; {_other_comparison(a, b)}"
            )
        if not missing:
            compared.append(folder)
            lines += [f"{folder}: {line}" for line in differences_between(a / folder, b / folder)]
    if not compared:
        raise DataError(f"neither {a} nor {b} holds a corpus; {_other_comparison(a, b)}")
    for line in lines or [f"identical: every file of {' and '.join(compared)}"]:
        say(line)
    return lines


def _other_comparison(a: Path, b: Path) -> str:
    """Return what to do about two runs whose corpora cannot be compared."""
    first, second = map(checkpoint_of, (a, b))
    if first and second:
        return f"to compare their models, name a checkpoint: `{shlex.join(['trivium', 'diff', str(first), str(b)])}`"
    return "run `trivium corpus run` first"


def _configs(a: str, b: str) -> list[str]:
    lines = differences(to_tree(resolve(Given(a))), to_tree(resolve(Given(b))))
    for line in lines or ["no field differs"]:
        say(line)
    return lines
