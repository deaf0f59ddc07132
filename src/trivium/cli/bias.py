"""`trivium bias`: what the checkpoint associates with occupations and groups of people."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.benchmarks import about_checkpoint, about_newest, cut_line
from trivium.cli.evaluate import Json
from trivium.cli.model_argument import asked_model, is_asked
from trivium.cli.options import (
    DEFAULT_OUT,
    AskedModel,
    Out,
    Preset,
    Reads,
    Redo,
    Sets,
    directory_of,
    given_for,
    open_asked,
    open_run,
    refuse_given,
)
from trivium.cli.settings import App, shows
from trivium.cli.show import percent, progress_of, say, table
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.errors import CheckpointError, ConfigError
from trivium.finite import dumps
from trivium.progress import Progress
from trivium.provenance import file_sha256, write_json
from trivium.report.words import chance_text, effect_text, range_text
from trivium.units import counted, shots_text

app = App()
SERIES = "bias_series.json"  # in the run directory
TEXTS_PER_BATCH = 64
WINOGRAD = ("winogender", "winobias")


@app.command()
@shows("seed", "bias")
def bias(
    place: AskedModel = None,
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
    redo: Redo = False,
    every: Annotated[bool, typer.Option("--every", help=f"Measure every checkpoint; write DIR/{SERIES}.")] = False,
    json: Json = None,
) -> None:
    """Association with occupations, adjectives and sentiment by group, pronouns: what `bias.analyses` lists.

    A run keeps what was measured in DIR/bias. Of another model it is printed, and written with --json.
    """
    place = None if place is None else asked_model(place)
    if place is not None and is_asked(place):
        refuse_given({"--redo": redo, "--every": every}, f"for the checkpoints of a run; {place} has no training")
        _measure_asked(place, out, preset, sets, json)
        return
    refuse_given({"--json": json}, "a run keeps the results in DIR/bias/results.json; leave it out")
    if every and redo:
        raise ConfigError("--redo: --every always measures every checkpoint again; leave --redo out")
    Reads("bias", BIAS.sections).check(sets)
    out = directory_of(place, out)
    run = open_run(out, given_for(out, preset, sets))
    if every:
        _series(run)
    else:
        perform(BIAS, run, redo=redo)


def _bias(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.evaluation.bias.run import measure

    measured = measure(run.config.bias, open_writer(run), seed=run.config.seed, progress=progress)
    results = {**measured.results, "model": about_newest(run.at.checkpoints)}
    write_json(out / "results.json", results)
    if measured.texts:
        with open(out / "texts.jsonl", "w", encoding="utf-8") as file:
            for text in measured.texts:
                line = {**text.prompt._asdict(), **text._asdict(), "prompt": text.prompt.text}
                file.write(dumps(line, ensure_ascii=False) + "\n")
    return results


def _measure_asked(place: Path, out: Path, preset: str | None, sets: list[str] | None, json: Path | None) -> None:
    """Measure a checkpoint or a Hugging Face model that is part of no run."""
    from trivium.evaluation.answer import NativeScorer
    from trivium.evaluation.bias.run import measure
    from trivium.interchange.target import opened
    from trivium.serving.writer import Writer

    Reads("bias", BIAS.sections).check(sets)
    run = open_asked(place, out, preset, sets)
    with opened(place) as found, progress_of("bias") as progress:
        scorer = Writer(NativeScorer.open(found.newest, found.tokenizer), together=TEXTS_PER_BATCH)
        measured = measure(run.config.bias, scorer, seed=run.config.seed, progress=progress)
        results = {**measured.results, "model": about_checkpoint(found.newest)}
    for line in _lines(results):
        say(line)
    if json is not None:
        write_json(json, results)


def _series(run: Run) -> None:
    from trivium.checkpoint.format import published, refuse_at_url
    from trivium.evaluation.bias.run import Moment, series

    BIAS.inputs(run)
    refuse_at_url(run.at.root)
    places = published(run.at.checkpoints)
    if not places:
        raise CheckpointError(f"{run.at.checkpoints} holds no checkpoint; run `trivium train` first")

    def moments() -> Iterator[Moment]:
        for place in places:
            say(f"  {place.name}")
            yield Moment(about_checkpoint(place), open_writer(run, place))

    found: Result = {}
    with progress_of("bias") as progress:
        for found in series(run.config.bias, moments(), seed=run.config.seed, progress=progress):
            write_json(run.at.root / SERIES, found)
    for line in series_lines(found):
        say(line)


def open_writer(run: Run, checkpoint: Path | None = None) -> Any:
    """Return a scorer of a checkpoint, by default the newest, that also writes many texts side by side."""
    from trivium.evaluation.answer import NativeScorer
    from trivium.serving.writer import Writer

    return Writer(NativeScorer.open(checkpoint or run.at.checkpoints, run.tokenizer), together=TEXTS_PER_BATCH)


def series_lines(found: Result) -> list[str]:
    """One row per effect, one column per checkpoint; not every checkpoint may have each."""
    moments = found["checkpoints"]
    header = ("measure", "of", *(f"{m['tokens']:,} tokens" for m in moments))
    effects = [{(e["measure"], e["of"]): e["estimate"] for e in m["effects"]} for m in moments]
    names = dict.fromkeys(name for at in effects for name in at)
    rows = [(*name, *(effect_text(at[name]) if name in at else "-" for at in effects)) for name in names]
    return table(rows, header=header)


def _lines(result: Result) -> list[str]:
    from trivium.report.verdicts import SIGNIFICANCE_LEVEL

    rows = [
        (
            row["measure"],
            row["of"],
            f"{effect_text(row['estimate'])} {row['unit']}",
            "-" if row["interval"] is None else range_text(row["interval"], effect_text),
            "-" if row["effect_size"] is None else effect_text(row["effect_size"]),
            chance_text(row["p_holm"]),
            row["n"],
        )
        for row in result["effects"]
        if row["p_holm"] < SIGNIFICANCE_LEVEL
    ]
    header = ("measure", "of", "estimate", "interval", "Cohen's d", "p (Holm)", "n")
    lines = table(rows, header=header) if rows else []
    if others := len(result["effects"]) - len(rows):
        lines.append(f"  {counted(others, 'effect')} not significant after Holm's correction; the report lists all")
    return [*lines, *_unmeasured_lines(result), *_cut_lines(result), *_share_lines(result)]


def _unmeasured_lines(result: Result) -> list[str]:
    """Return lines about groups without a result, because not every model writes adjectives about every group."""
    return [
        f"  not measured: {row['measure']}, {row['of']}; of it or of the others no text of {row['n']} has a word that "
        "counts"
        for row in result.get("not_measured", ())
    ]


def _cut_lines(result: Result) -> list[str]:
    return [
        cut_line(f"{percent(share)} of the prompts of {task}, {shots_text(shots)}", result["model"])
        for task, by_shots in result.get("coreference", {}).items()
        for shots, found in by_shots.items()
        if (share := found["truncated_fraction"])
    ]


def _share_lines(result: Result) -> list[str]:
    return [
        f"  {variant}: {100 * found['male_share']:.1f} % of {found['n']} occupations lean male; "
        f"after 'person', log P(female) - log P(male) = {effect_text(found['person_log_ratio'])}"
        for variant, found in result.get("variants", {}).items()
    ]


def files_of(run: Run) -> dict[str, str]:
    """The hash of every file of the user's own that the config names."""
    config = run.config.bias
    named = [config.occupation_list, config.cooccurrence.lexicon]
    files = [Path(name) for name in named if name and Path(name).is_file()]
    if config.data and set(WINOGRAD) & set(config.analyses):
        files += [p for task in WINOGRAD for p in sorted((Path(config.data) / task).glob("*")) if p.is_file()]
    return {str(path): file_sha256(path) for path in files}


BIAS = Stage(
    name="bias",
    verb="bias",
    folder="bias",
    sections=("bias",),
    reads=("tokens", "training"),
    work=_bias,
    summary=_lines,
    outside=files_of,
)
