"""`trivium evaluate`: the newest checkpoint on tasks made from held-out documents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from trivium.cli.options import DEFAULT_OUT, Out, Preset, Redo, Sets, given_for, open_run
from trivium.cli.show import table
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.progress import Progress
from trivium.provenance import write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def evaluate(out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False) -> None:
    """Score held-out tasks zero- and few-shot, beside chance and a unigram model."""
    perform(EVALUATE, open_run(out, given_for(out, preset, sets)), redo=redo)


def open_scorer(run: Run) -> Any:
    """A scorer of the newest checkpoint; imports torch."""
    from trivium.evaluation.answer import NativeScorer

    return NativeScorer.open(run.at.checkpoints, run.tokenizer)


def _evaluate(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.evaluation.run import evaluate
    from trivium.evaluation.unigram import unigram_scorer
    from trivium.tokens.manifest import token_counts
    from trivium.tokens.tokenizer import load_tokenizer

    found: dict[str, Any] = evaluate(
        run.config.evaluation,
        open_scorer(run),
        run.folder("harvest") / "evaluation_items.jsonl",
        seed=run.config.seed,
        unigram=unigram_scorer(load_tokenizer(run.tokenizer), token_counts(run.folder("tokens"), "train")),
        progress=progress,
    )
    write_json(out / "results.json", found)
    return found


def _lines(result: Result) -> list[str]:
    rows = [
        (
            task,
            shots,
            _percent(scored["accuracy"]),
            _interval(scored),
            _percent(scored["chance"]),
            _percent(scored["unigram"]),
            f"{scored['nats_per_byte']:.3f} ({scored['unigram_nats_per_byte']:.3f})",
            scored["n"],
        )
        for task, by_shots in result["tasks"].items()
        for shots, scored in by_shots.items()
    ]
    return table(
        rows,
        header=("task", "shots", "accuracy", "interval", "chance", "unigram", "nats/byte (unigram)", "n"),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _interval(scored: Mapping[str, Any]) -> str:
    low, high = scored["interval"]
    return f"{100 * low:.1f} - {100 * high:.1f} %"


EVALUATE = Stage(
    name="evaluate",
    verb="evaluate",
    folder="evaluation",
    sections=("evaluation",),
    reads=("harvest", "tokens", "training"),
    work=_evaluate,
    summary=_lines,
)
