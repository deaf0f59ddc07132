"""`trivium bias`: which occupations the checkpoint associates with which words."""

from pathlib import Path
from typing import Any

import typer

from trivium.cli.evaluate import open_scorer
from trivium.cli.options import DEFAULT_OUT, Out, Preset, Redo, Sets, given_for, open_run
from trivium.cli.show import table
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.progress import Progress
from trivium.provenance import write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def bias(out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False) -> None:
    """Compare the likelihoods of gendered words after occupations."""
    perform(BIAS, open_run(out, given_for(out, preset, sets)), redo=redo)


def _bias(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.bias.association import association

    found: dict[str, Any] = association(
        run.config.bias, open_scorer(run), seed=run.config.seed, progress=progress
    )
    write_json(out / "results.json", found)
    return found


def _lines(result: Result) -> list[str]:
    rows = [
        (
            variant,
            found["n"],
            f"{found['mean_log_ratio']:+.3f}",
            "{:+.3f} to {:+.3f}".format(*found["interval"]),
            f"{found['person_log_ratio']:+.3f}",
            f"{100 * found['male_share']:.1f} %",
        )
        for variant, found in result["variants"].items()
    ]
    header = ("variant", "occupations", "log(female/male)", "interval", "after 'person'", "lean male")
    return table(rows, header=header)


BIAS = Stage(
    name="bias",
    verb="bias",
    folder="bias",
    sections=("bias",),
    reads=("tokens", "training"),
    work=_bias,
    summary=_lines,
)
