"""`trivium tokenize`: documents become a tokenizer and token shards."""

from pathlib import Path
from typing import Any

import typer

from trivium.cli.options import DEFAULT_OUT, Out, Preset, Redo, Sets, given_for, open_run
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.errors import ConfigError
from trivium.progress import Progress

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def tokenize(out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False) -> None:
    """Train a byte-level BPE tokenizer and write Megatron-compatible shards."""
    perform(TOKENIZE, open_run(out, given_for(out, preset, sets)), redo=redo)


def check_vocabulary(run: Run, reached: int) -> None:
    """Refuse to train a model for ids that the tokenizer does not have, or that it has not room for."""
    wanted = run.config.plan.model.vocabulary
    if reached != wanted:
        raise ConfigError(
            f"the tokenizer reached {reached} ids, but plan.model.vocabulary is {wanted}; give more text, or "
            f"--set plan.model.vocabulary={reached} --set tokens.vocabulary={reached}"
        )


def _tokenize(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.tokens.encode import tokenize

    found: dict[str, Any] = tokenize(
        run.config.tokens, run.folder("curated"), out, seed=run.config.seed, progress=progress
    )
    return found


def _lines(result: Result) -> list[str]:
    totals = result["totals"]
    lines = [f"  vocabulary {result['vocabulary']} ids ({result['dtype']} shards)"]
    for split in ("train", "validation"):
        part = totals[split]
        lines.append(f"  {split}: {part['tokens']:,} tokens of {part['documents']:,} documents")
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
)
