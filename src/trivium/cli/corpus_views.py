"""`trivium corpus diff`, `inspect`, `rejects`, `stats`: looking at what a curation left."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.local_path import local_path
from trivium.cli.options import DEFAULT_OUT, Out
from trivium.cli.show import say
from trivium.cli.workspace import Workspace, read_result
from trivium.errors import ConfigError, DataError
from trivium.finite import dumps
from trivium.provenance import stamp_hash, write_json

STATIONS = ("curated", "tokens")  # of a run directory
SHOWN = 300  # characters of a reject's text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunDirectory = Annotated[Path, typer.Argument(parser=local_path, metavar="DIR", help="A run directory.")]


def diff(a: RunDirectory, b: RunDirectory) -> None:
    """Compare the corpora of two run directories byte for byte; exit code 1 when they differ."""
    from trivium.corpus.publish.views import differences_between

    lines, compared = [], []
    for station in STATIONS:
        if (a / station).is_dir() or (b / station).is_dir():
            compared.append(station)
            lines += [f"{station}/{line}" for line in differences_between(a / station, b / station)]
    if not compared:
        raise DataError(f"neither {a} nor {b} holds a corpus; run `trivium corpus run` first")
    for line in lines or [f"identical: every file of {' and '.join(compared)}"]:
        say(line)
    if lines:
        raise typer.Exit(1)


def inspect(
    document: Annotated[str, typer.Argument(metavar="ID", help="A document's id.")],
    out: Out = DEFAULT_OUT,
    as_json: AsJson = False,
) -> None:
    """Show a document's whole history: every figure, every decision, and the copies dropped in its favour."""
    from trivium.corpus.publish.views import history, history_lines

    found = history(out / "curated", document)
    for line in [dumps(found, ensure_ascii=False)] if as_json else history_lines(found):
        say(line)


def rejects(
    out: Out = DEFAULT_OUT,
    step: Annotated[str, typer.Option("--step", metavar="NAME", help="Only of this step of the funnel.")] = "",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Only those whose reason holds this text.")
    ] = "",
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many, drawn evenly.")] = 10,
    characters: Annotated[
        int | None,
        typer.Option("--characters", metavar="N", min=0, help=f"How much of each text is shown; default: {SHOWN}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show some of the documents that were dropped, and why."""
    from trivium.corpus.publish.views import reject_lines, some_rejects

    if as_json and characters is not None:
        raise ConfigError(f"--characters {characters}: --json has each text whole; leave one of the two out")
    found = some_rejects(out / "curated", step=step, reason=reason, count=count)
    if not found:
        raise DataError(
            f"no reject of {out / 'curated'} has --step '{step}' and --reason '{reason}'; `trivium corpus stats` "
            "counts them"
        )
    whole = [dumps(row, ensure_ascii=False) for row in found] if as_json else []
    for line in whole or reject_lines(found, characters=SHOWN if characters is None else characters):
        say(line)


def stats(out: Out = DEFAULT_OUT, as_json: AsJson = False) -> None:
    """Show distributions: lengths, scores, reasons for rejection, similarities of near duplicates."""
    from trivium.corpus.publish.views import corpus_statistics, statistics_lines

    found = keep_statistics(Workspace(out)) or corpus_statistics(out / "curated")
    for line in [dumps(found, ensure_ascii=False)] if as_json else statistics_lines(found):
        say(line)


def keep_statistics(at: Workspace) -> dict[str, Any]:
    """The statistics of a run's finished corpus, kept beside it for the report; nothing where there is none."""
    from trivium.corpus.publish.views import corpus_statistics

    curated, kept = at.folder("curated"), at.folder("statistics.json")
    key = stamp_hash(curated)
    if not key:
        return {}
    before = read_result(kept) if kept.is_file() else {}
    if before.get("of") == key:
        return before
    found = {"of": key, **corpus_statistics(curated)}
    write_json(kept, found)
    return found
