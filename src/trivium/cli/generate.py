"""`trivium generate`: the checkpoint continues prompts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.evaluate import open_scorer
from trivium.cli.options import DEFAULT_OUT, Out, Preset, Redo, Sets, given_for, open_run
from trivium.cli.show import say
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.progress import Progress
from trivium.provenance import write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def generate(
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
    redo: Redo = False,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Continue this, print it, keep nothing.")
    ] = None,
) -> None:
    """Continue the prompts of the config and keep the samples, or one prompt given here."""
    run = open_run(out, given_for(out, preset, sets))
    if prompt is None:
        perform(GENERATE, run, redo=redo)
        return
    GENERATE.inputs(run)
    asked = run.config.generation.model_copy(update={"prompts": (prompt,)})
    from trivium.evaluation.samples import generate_samples

    for line in _lines({"samples": generate_samples(asked, open_scorer(run), seed=run.config.seed)}):
        say(line)


def _generate(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.evaluation.samples import generate_samples

    samples: list[Any] = generate_samples(run.config.generation, open_scorer(run), seed=run.config.seed)
    write_json(out / "samples.json", samples)
    return {"samples": samples}


def _lines(result: Result) -> list[str]:
    return [
        f"  {' '.join(sample['prompt'].split())} | {' '.join(sample['continuation'].split())}"
        for sample in result["samples"]
    ]


GENERATE = Stage(
    name="generate",
    verb="generate",
    folder="generate",
    sections=("generation",),
    reads=("tokens", "training"),
    work=_generate,
    summary=_lines,
)
