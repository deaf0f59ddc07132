"""`trivium reproduce`: the figures of the paper beside those that Trivium computes."""

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.local_path import local_path
from trivium.cli.show import STANDARD_OUTPUT, say_found, table
from trivium.errors import ConfigError
from trivium.provenance import write_json
from trivium.reproduction.page import HEADER, every_figure, markdown, rows, summary
from trivium.units import plain

FORMAT = "trivium-reproduction-1"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def reproduce(
    json: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=local_path,
            metavar="FILE",
            help="Write the figures as data; -: to standard output.",
        ),
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of docs/reproduction.md.")
    ] = False,
) -> None:
    """Put the paper's figures (arXiv 2201.11990) beside ours: what follows from plan, schedule, cost model and blend.

    Losses and accuracies need the trained model; `trivium evaluate` shows the published ones beside yours.
    """
    if json == STANDARD_OUTPUT and as_markdown:
        raise ConfigError(
            "--json -, --markdown: both write to standard output; give one of them, or --json FILE"
        )
    figures = every_figure()
    data = {"format": FORMAT, "figures": [f.tree() for f in figures]}
    if as_markdown:
        if json is not None:
            write_json(json, data)
        print(plain(markdown(figures)), end="")
        return
    say_found([*table(rows(figures), header=HEADER, indent=0), summary(figures)], data, json)
